package pubsub_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/pubsub"
)

func TestMain(m *testing.M) {
	// A cluster client that was closed may still sleep before it refreshes its
	// topology, for a second at most.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// patience is for what must happen; nothing waits that long unless it fails.
const patience = 20 * time.Second

// ear is a subscriber that counts.
type ear struct {
	mu              sync.Mutex
	looks, messages int
	changed         chan struct{} // closed and replaced at each signal
	gone            bool
	late            int // signals after stop returned
}

func newEar() *ear { return &ear{changed: make(chan struct{})} }

func (e *ear) notify(s pubsub.Signal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		e.late++
	}
	switch s {
	case pubsub.Look:
		e.looks++
	case pubsub.Message:
		e.messages++
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *ear) counts() (looks, messages int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.looks, e.messages
}

// until waits until ok.
func (e *ear) until(t testing.TB, what string, ok func(looks, messages int) bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		e.mu.Lock()
		looks, messages, changed := e.looks, e.messages, e.changed
		e.mu.Unlock()
		if ok(looks, messages) {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("%s: %d looks and %d messages", what, looks, messages)
		}
	}
}

func (e *ear) untilLooks(t testing.TB, n int) {
	t.Helper()
	e.until(t, fmt.Sprintf("%d looks", n), func(looks, _ int) bool { return looks >= n })
}

func (e *ear) untilMessages(t testing.TB, n int) {
	t.Helper()
	e.until(t, fmt.Sprintf("%d messages", n), func(_, messages int) bool { return messages >= n })
}

// newHub returns a hub that is closed before its client.
func newHub(t testing.TB, c rueidis.Client, o pubsub.Options) *pubsub.Hub {
	h := pubsub.New(c, o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		h.Close(ctx)
		require.NoError(t, ctx.Err(), "Close did not end")
	})
	return h
}

// noPoll makes sure that a Look does not come by polling.
const noPoll = time.Hour

func resp2(o *rueidis.ClientOption) { o.AlwaysRESP2 = true }

func resp3(*rueidis.ClientOption) {}

func via(p *redistest.Proxy) func(*rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) { o.InitAddress = []string{p.Addr()} }
}

// protocols runs a test with both protocols at the same time.
func protocols(t *testing.T, test func(t *testing.T, proto func(*rueidis.ClientOption))) {
	t.Run("RESP3", func(t *testing.T) { t.Parallel(); test(t, resp3) })
	t.Run("RESP2", func(t *testing.T) { t.Parallel(); test(t, resp2) })
}

// errorLog collects what is reported.
type errorLog struct {
	mu   sync.Mutex
	errs []error
}

func (l *errorLog) report(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

func (l *errorLog) all() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]error(nil), l.errs...)
}
