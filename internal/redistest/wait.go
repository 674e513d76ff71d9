package redistest

import "time"

// patience bounds the waits for servers that have to agree on something.
const patience = 30 * time.Second

// Eventually polls until ok returns true, and fails the test with what when it
// is not true in time. It is for conditions of which nothing gives notice, such
// as the expiry of a key; where there is an event, wait for the event.
func Eventually(tb TB, within time.Duration, what string, ok func() bool) {
	tb.Helper()
	const interval = 2 * time.Millisecond
	for deadline := time.Now().Add(within); !ok(); {
		if time.Now().After(deadline) {
			tb.Fatalf("redistest: not within %v: %s", within, what)
			return
		}
		time.Sleep(interval)
	}
}

// await polls until check returns nil, and fails the test with its last error
// when that does not happen in time. It asks less often than Eventually, for
// its questions go to many servers which have more important things to do.
func await(tb TB, what string, check func() error) {
	tb.Helper()
	const interval = 20 * time.Millisecond
	for deadline := time.Now().Add(patience); ; time.Sleep(interval) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("redistest: not within %v: %s: %v", patience, what, err)
			return
		}
	}
}
