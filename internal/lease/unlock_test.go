package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

func TestUnlockTellsWhatIsKnownOfTheRelease(t *testing.T) {
	// first is what becomes of the first release; then the network is well.
	first := func(f func(cmd, *plan)) func(w *world) {
		return func(w *world) {
			n := 0
			w.plan(only("release", func(c cmd, p *plan) {
				if n++; n == 1 {
					f(c, p)
				}
			}))
		}
	}
	both := func(a, b func(w *world)) func(w *world) { return func(w *world) { a(w); b(w) } }
	gone := func(w *world) { w.remove("a") }
	taken := func(w *world) { w.occupy("a", time.Second) }
	for name, c := range map[string]struct {
		set    func(w *world)
		err    error
		reason fault.Reason
		sent   int
	}{
		"all is well":                        {func(*world) {}, nil, "", 1},
		"gone":                               {gone, fault.ErrLost, fault.Expired, 1},
		"taken":                              {taken, fault.ErrLost, fault.Taken, 1},
		"not executed":                       {first(failing(notExecuted, true)), nil, "", 2},
		"not executed, and gone":             {both(first(failing(notExecuted, true)), gone), fault.ErrLost, fault.Expired, 2},
		"not executed, and taken":            {both(first(failing(notExecuted, true)), taken), fault.ErrLost, fault.Taken, 2},
		"unknown":                            {first(failing(unknown, true)), nil, "", 2},
		"unknown, but executed":              {first(failing(unknown, false)), nil, "", 2},
		"unknown, and gone":                  {both(first(failing(unknown, true)), gone), nil, "", 2},
		"unknown, and taken":                 {both(first(failing(unknown, true)), taken), nil, "", 2},
		"fatal":                              {first(failing(fatal, true)), fault.ErrWrongType, "", 1},
		"receipts: unknown, but executed":    {both(first(failing(unknown, false)), func(w *world) { w.receipts = true }), nil, "", 2},
		"receipts: unknown, and gone":        {both(first(failing(unknown, true)), func(w *world) { w.receipts = true; w.remove("a") }), fault.ErrLost, fault.Expired, 2},
		"receipts: not executed, and gone":   {both(first(failing(notExecuted, true)), func(w *world) { w.receipts = true; w.remove("a") }), fault.ErrLost, fault.Expired, 2},
		"receipts: unknown, and next to own": {both(first(failing(unknown, false)), func(w *world) { w.receipts = true; time.AfterFunc(ms, func() { w.occupy("a", time.Second) }) }), nil, "", 2},
	} {
		for _, lease := range []time.Duration{900 * ms, 30 * time.Second} {
			t.Run(name+" "+lease.String(), func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					p := w.proc()
					l := p.lock(w.request("a", terms(lease)))
					c.set(w)
					start := w.now()
					left, err := l.Unlock(context.Background(), &l.m)
					require.Zero(t, left)
					require.ErrorIs(t, err, c.err)
					require.Less(t, w.now(), start+20*ms)
					require.Len(t, w.sent("release"), c.sent)
					require.Equal(t, Released, l.state())
					require.ErrorIs(t, context.Cause(l.ctx), fault.ErrNotHeld)
					lost := told(p, &p.lost)
					if c.reason == "" {
						require.Empty(t, lost)
					} else {
						require.Len(t, lost, 1)
						require.Equal(t, c.reason, lost[0].Reason)
						require.Equal(t, lossError{lost[0]}, err)
					}
					require.Equal(t, fault.ErrNotHeld, l.unlock())
					require.Zero(t, p.Stats().Held)
					time.Sleep(lease) // a fatal error leaves it there
				})
			})
		}
	}
}

func TestUnlockAnswersInTimeAndTheReleaseGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		lease, timeout time.Duration
		trouble        func(cmd, *plan)
	}{
		"black hole, long lease":  {30 * time.Second, 3 * time.Second, hole},
		"black hole, short limit": {30 * time.Second, 500 * ms, hole},
		"black hole, short lease": {900 * ms, 3 * time.Second, hole},
		"errors, long lease":      {30 * time.Second, 3 * time.Second, failing(notExecuted, true)},
		"errors, short limit":     {30 * time.Second, 500 * ms, failing(notExecuted, true)},
		"errors, short lease":     {900 * ms, 3 * time.Second, failing(unknown, true)},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc(func(k *Config) { k.Timeout = c.timeout })
				start := w.now()
				l := p.lock(w.request("a", terms(c.lease)))
				w.plan(only("release", c.trouble))
				sent := w.now()
				err := l.unlock()
				require.ErrorIs(t, err, fault.ErrUnknown)
				require.LessOrEqual(t, w.now(), min(sent+c.timeout, limit(start, c.lease)))
				require.GreaterOrEqual(t, w.now(), min(sent+c.timeout, limit(start, c.lease))-longestBackoff)
				require.Zero(t, p.Stats().Held)
				synctest.Wait()
				if c.lease > time.Second {
					require.Equal(t, 1, p.Stats().Running)
					require.Equal(t, l.Owner(), w.holder("a"))
					time.Sleep(2 * time.Second)
					w.plan(nil)
					time.Sleep(c.timeout + 100*ms)
					require.Empty(t, w.holder("a"), "released in the background")
					require.Zero(t, p.Stats().Running)
				}
			})
		})
	}
}

func TestAReleaseIsGivenUpAtTheEndOfTheLease(t *testing.T) {
	for name, trouble := range map[string]func(cmd, *plan){"errors": failing(unknown, true), "black hole": hole} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				const lease = 10 * time.Second
				p := w.proc()
				start := w.now()
				l := p.lock(w.request("a", terms(lease)))
				w.plan(only("release", trouble))
				require.ErrorIs(t, l.unlock(), fault.ErrUnknown)
				time.Sleep(time.Minute)
				at := times(w.sent("release"))
				require.LessOrEqual(t, at[len(at)-1], limit(start, lease))
				require.GreaterOrEqual(t, at[len(at)-1], limit(start, lease)-3*time.Second-longestBackoff)
				for i := 1; i < len(at); i++ {
					require.LessOrEqual(t, at[i]-at[i-1], 3*time.Second+longestBackoff)
				}
				require.Zero(t, p.Stats().Running)
			})
		})
	}
}

func TestTheNextOfThisProcessGetsInAfterAReleaseOfUnknownOutcome(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		l := p.lock(r)
		next := p.begin(context.Background(), r, false)
		w.plan(only("release", func(c cmd, p *plan) {
			if c.at < 3*time.Second {
				p.err, p.skip = unknown(), true
			}
		}))
		time.Sleep(time.Second)
		require.NoError(t, l.unlock())
		a := <-next
		require.NoError(t, a.err)
		require.Less(t, a.at, 3200*ms)
		require.NoError(t, a.unlock())
	})
}

func TestUnlockOfANestedLeaseLeavesTheOthers(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(30*time.Second)))
		inner, n, err := p.enter(l)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		left, err := l.Unlock(context.Background(), &l.m) // the root first
		require.NoError(t, err)
		require.Equal(t, 1, left)
		require.Equal(t, Released, l.state())
		require.Equal(t, Held, inner.state())
		require.Equal(t, fault.ErrNotHeld, l.unlock())
		require.ErrorIs(t, context.Cause(l.ctx), fault.ErrNotHeld)
		require.NoError(t, inner.ctx.Err())
		owner, count, _ := w.look("a")
		require.Equal(t, l.Owner(), owner)
		require.Equal(t, 1, count)
		time.Sleep(time.Minute)
		require.Equal(t, Held, inner.state())
		require.NoError(t, inner.unlock())
		require.Empty(t, w.holder("a"))
	})
}

func TestConcurrentUnlocksOfOneLeaseReleaseOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(30*time.Second)))
		errs := make(chan error, 10)
		for range 10 {
			go func() { errs <- l.unlock() }()
		}
		good := 0
		for range 10 {
			if err := <-errs; err == nil {
				good++
			} else {
				require.Equal(t, fault.ErrNotHeld, err)
			}
		}
		require.Equal(t, 1, good)
		require.Len(t, w.sent("release"), 1)
	})
}

func TestAnUnlockDuringTheLossIsToldOfIt(t *testing.T) {
	// The context takes its time to end, and the lease runs out meanwhile.
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(900*ms, fixed))
		res, err := p.Acquire(context.Background(), r, false)
		require.NoError(t, err)
		var m Member
		res.Hold.Join(context.Background(), &m, func(error) { time.Sleep(time.Second) })
		_, err = res.Hold.Unlock(context.Background(), &m)
		require.ErrorIs(t, err, fault.ErrLost)
		require.Empty(t, w.sent("release"))
		time.Sleep(time.Second)
	})
}

func TestALostContextEndsBeforeThisProcessAsksAgain(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(900*ms, fixed))
		res, err := p.Acquire(context.Background(), r, false)
		require.NoError(t, err)
		next := p.begin(context.Background(), r, false)
		synctest.Wait()
		var m Member
		res.Hold.Join(context.Background(), &m, func(cause error) {
			require.ErrorIs(w, cause, fault.ErrLost)
			time.Sleep(50 * ms) // the lease is over in the store, too
			synctest.Wait()
			require.Len(w, w.sent("take"), 1)
			_, ok := got(next)
			require.False(w, ok)
		})
		a := <-next
		require.NoError(t, a.err)
		require.NoError(t, a.unlock())
		_, err = res.Hold.Unlock(context.Background(), &m)
		require.ErrorIs(t, err, fault.ErrLost)
	})
}
