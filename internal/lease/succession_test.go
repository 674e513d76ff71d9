package lease

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// succeeding runs f in a world whose stores release and take in one round trip.
func succeeding(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	in(t, func(t *testing.T, w *world) {
		w.succeeds = true
		f(t, w)
	})
}

// alone has p take the lock and find out, by a release, that nobody else wants it.
// It is held then, and the answers are those of n callers who wait.
func (p *proc) alone(ctx context.Context, r *Request, n int) (l *held, waiting []chan answer) {
	p.w.Helper()
	first := p.lock(r)
	c := p.begin(context.Background(), r, false)
	synctest.Wait()
	require.NoError(p.w, first.unlock())
	a := <-c
	require.NoError(p.w, a.err)
	for range n {
		waiting = append(waiting, p.begin(ctx, r, false))
		synctest.Wait()
	}
	p.w.forget()
	return a.held, waiting
}

func TestAProcessThatIsAloneReleasesAndTakesInOneRoundTrip(t *testing.T) {
	for _, fencing := range []bool{false, true} {
		t.Run(fmt.Sprint("fencing ", fencing), func(t *testing.T) {
			succeeding(t, func(t *testing.T, w *world) {
				p := w.proc()
				r := w.request("a", terms(30*time.Second, func(t *Terms) { t.Fencing = fencing }))
				l, waiting := p.alone(context.Background(), r, 20)
				token := l.Token()
				for _, c := range waiting {
					released := w.now()
					require.NoError(t, l.unlock())
					a := <-c
					require.NoError(t, a.err)
					require.Equal(t, released+2*way, a.at)
					require.Equal(t, a.Owner(), w.holder("a"))
					require.Equal(t, fencing, a.Token() > token)
					require.Equal(t, 30*time.Second-r.Terms.Lease/100-2*ms-2*way, a.Remaining(&a.m), "from when it was sent")
					l, token = a.held, a.Token()
				}
				require.Len(t, w.sent("succeed"), 20)
				require.Empty(t, w.sent("take"))
				require.Empty(t, w.sent("release"))
				require.NoError(t, l.unlock())
				require.Len(t, w.sent("release"), 1, "nobody waits any more")
			})
		})
	}
}

func TestNobodySucceedsBeforeOthersHadTheirChance(t *testing.T) {
	for name, set := range map[string]func(w *world, r *Request) (undo func()){
		"it is not known whether there are others": func(w *world, _ *Request) func() {
			w.unheard = true
			return func() {}
		},
		"others listen":     func(_ *world, r *Request) func() { return r.Store.Subscribe(nobody{}) },
		"it is to be kept":  func(_ *world, r *Request) func() { r.Terms.MinHold = ms; return func() {} },
		"time for the rest": func(*world, *Request) func() { time.Sleep(humbleEvery); return func() {} },
	} {
		t.Run(name, func(t *testing.T) {
			succeeding(t, func(t *testing.T, w *world) {
				p := w.proc()
				r := w.request("a", terms(30*time.Second))
				l, waiting := p.alone(context.Background(), r, 2)
				undo := set(w, r)
				defer undo()
				time.Sleep(ms)
				// The first release after it began may still go by what the one before heard.
				require.NoError(t, l.unlock())
				a := <-waiting[0]
				require.NoError(t, a.err)
				w.forget()
				require.NoError(t, a.unlock())
				b := <-waiting[1]
				require.NoError(t, b.err)
				if name != "time for the rest" {
					require.Empty(t, w.sent("succeed"))
				}
				require.NoError(t, b.unlock())
			})
		})
	}
	t.Run("who wants one answer only", func(t *testing.T) {
		succeeding(t, func(t *testing.T, w *world) {
			p := w.proc()
			r := w.request("a", terms(30*time.Second))
			l, _ := p.alone(context.Background(), r, 0)
			w.plan(only("release", func(_ cmd, p *plan) { p.before = 10 * ms }))
			go func() { time.Sleep(ms); _, _ = p.acquire(context.Background(), r, true) }()
			require.NoError(t, l.unlock())
			require.Empty(t, w.sent("succeed"))
		})
	})
}

// Whatever becomes of either half: the next one gets in, at last, and nothing is left
// behind; the world sees to that at its end.
func TestASuccessionMayGoWrongInEveryWay(t *testing.T) {
	for name, c := range map[string]struct {
		plan   func(w *world) func(c cmd, p *plan)
		unlock error         // of the one before
		within time.Duration // the next one has it
	}{
		"the answer to the second half is lost": {func(*world) func(cmd, *plan) {
			return func(_ cmd, p *plan) { p.grantErr = unknown() }
		}, nil, 20 * ms},
		"the second half is not executed": {func(*world) func(cmd, *plan) {
			return func(_ cmd, p *plan) { p.grantErr = notExecuted() }
		}, nil, 20 * ms},
		"both answers are lost": {func(*world) func(cmd, *plan) {
			return func(_ cmd, p *plan) { p.err = unknown() }
		}, nil, 20 * ms},
		"both are lost on the way": {func(*world) func(cmd, *plan) {
			return func(_ cmd, p *plan) { p.err, p.skip = unknown(), true }
		}, nil, 20 * ms},
		"neither is executed": {func(*world) func(cmd, *plan) {
			return func(_ cmd, p *plan) { p.err, p.skip = notExecuted(), true }
		}, nil, 20 * ms},
		"it falls into a black hole": {func(*world) func(cmd, *plan) {
			return hole
		}, fault.ErrUnknown, 4 * time.Second},
		"the answers fall into a black hole": {func(*world) func(cmd, *plan) {
			return func(_ cmd, p *plan) { p.hole = true }
		}, fault.ErrUnknown, 4 * time.Second},
		"somebody else comes in between": {func(w *world) func(cmd, *plan) {
			return func(_ cmd, p *plan) {
				p.between = func() { w.locks["a"] = &row{"foreigner", 1, w.now() + 500*ms} }
			}
		}, nil, 510 * ms},
		"the lock had been lost": {func(w *world) func(cmd, *plan) {
			return func(cmd, *plan) { delete(w.locks, "a") }
		}, fault.ErrLost, 20 * ms},
		"the lock had been taken": {func(w *world) func(cmd, *plan) {
			return func(cmd, *plan) { w.locks["a"] = &row{"foreigner", 1, w.now() + 500*ms} }
		}, fault.ErrLost, 510 * ms},
		"a copy comes late": {func(*world) func(cmd, *plan) {
			return func(_ cmd, p *plan) { p.copies = []time.Duration{5 * ms, 50 * ms} }
		}, nil, 20 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				succeeding(t, func(t *testing.T, w *world) {
					p := w.proc()
					r := w.request("a", terms(30*time.Second))
					l, waiting := p.alone(context.Background(), r, 2)
					once := c.plan(w)
					done := false
					w.plan(only("succeed", func(c cmd, p *plan) {
						if !done {
							done = true
							once(c, p)
						}
					}))
					released := w.now()
					err := l.unlock()
					require.ErrorIs(t, err, c.unlock)
					a := <-waiting[0]
					require.NoError(t, a.err)
					require.LessOrEqual(t, a.at, released+c.within)
					require.Equal(t, a.Owner(), w.holder("a"))
					require.LessOrEqual(t, l.endedAt(), w.sent("succeed")[0].at, "the context ends first")
					time.Sleep(100 * ms) // late copies
					require.Equal(t, a.Owner(), w.holder("a"))
					require.NoError(t, a.unlock())
					b := <-waiting[1]
					require.NoError(t, b.err)
					require.NoError(t, b.unlock())
				})
			}
		})
	}
}

func TestASuccessorMayLeave(t *testing.T) {
	for _, when := range []time.Duration{0, way, 2 * way, 3 * way} {
		for _, next := range []bool{false, true} {
			t.Run(fmt.Sprint(when, " next ", next), func(t *testing.T) {
				succeeding(t, func(t *testing.T, w *world) {
					p := w.proc()
					r := w.request("a", terms(30*time.Second))
					ctx, cancel := context.WithCancel(context.Background())
					l, waiting := p.alone(ctx, r, 1)
					var c chan answer
					if next {
						c = p.begin(context.Background(), r, false)
						synctest.Wait()
					}
					time.AfterFunc(max(when, 1), cancel)
					require.NoError(t, l.unlock())
					if a := <-waiting[0]; a.err == nil {
						require.NoError(t, a.unlock())
					} else {
						require.ErrorIs(t, a.err, context.Canceled)
					}
					if next {
						a := <-c
						require.NoError(t, a.err)
						require.NoError(t, a.unlock())
					}
					cancel()
				})
			})
		}
	}
}

func TestCloseWaitsForASuccession(t *testing.T) {
	succeeding(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		l, waiting := p.alone(context.Background(), r, 1)
		w.plan(only("succeed", func(_ cmd, p *plan) { p.after = 100 * ms }))
		go func() { require.NoError(t, l.unlock()) }()
		time.Sleep(10 * ms)
		closed := p.closing(context.Background())
		require.ErrorIs(t, (<-waiting[0]).err, fault.ErrClosed)
		require.NoError(t, <-closed)
		require.Empty(t, w.holder("a"), "what was granted to nobody is given back")
	})
}
