package redistest

import "time"

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
