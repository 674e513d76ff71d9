package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

func TestWaitersAreServedFirstComeFirstServed(t *testing.T) {
	for _, n := range []int{0, 1, 64} {
		for _, joinable := range []bool{false, true} {
			t.Run(fmt.Sprintf("handoff %d, joinable %v", n, joinable), func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					w.joinable = joinable
					p := w.proc()
					r := w.request("a", terms(30*time.Second, handoff(n)))
					first := p.lock(r)
					var mu sync.Mutex
					var order []int
					var wg sync.WaitGroup
					inside := 0
					for i := range 100 {
						wg.Go(func() {
							l, err := p.acquire(context.Background(), r, false)
							require.NoError(w, err)
							mu.Lock()
							order = append(order, i)
							inside++
							require.Equal(w, 1, inside)
							mu.Unlock()
							time.Sleep(rand.N(2 * ms))
							mu.Lock()
							inside--
							mu.Unlock()
							require.NoError(w, l.unlock())
						})
						synctest.Wait()
					}
					require.Equal(t, 100, p.Stats().Waiting)
					require.NoError(t, first.unlock())
					wg.Wait()
					require.True(t, slices.IsSorted(order), "%v", order)
					require.Equal(t, 1, w.mostTake, "attempts at once")
				})
			})
		}
	}
}

func TestAThousandWaitersOnAForeignLockAskLikeOne(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.occupy("a", 30*time.Second)
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		ctx, cancel := context.WithCancel(context.Background())
		errs := make(chan error, 1000)
		for range 1000 {
			go func() {
				_, err := p.acquire(ctx, r, false)
				errs <- err
			}()
		}
		time.Sleep(5 * time.Second)
		require.Equal(t, 1000, p.Stats().Waiting)
		require.LessOrEqual(t, len(w.sent("take")), 3)
		require.Equal(t, 1, w.subbed)
		cancel()
		for range 1000 {
			err := <-errs
			require.ErrorIs(t, err, fault.ErrNotAcquired)
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Equal(t, 1, w.mostTake)
	})
}

func TestAWaiterWakes(t *testing.T) {
	for name, c := range map[string]struct {
		ttl, longest time.Duration
		deaf, blind  bool
		at, grain    time.Duration // when the lock is free, and how late it may be taken
	}{
		"at a message":                {ttl: 30 * time.Second, at: 2 * time.Second, grain: 3 * way},
		"at the end of the TTL":       {ttl: 3 * time.Second, deaf: true, at: 3 * time.Second, grain: ms + 4*way},
		"after the longest sleep":     {ttl: 30 * time.Second, longest: 700 * ms, deaf: true, at: 2 * time.Second, grain: 702 * ms},
		"on a lock without an end":    {ttl: -1, deaf: true, at: 7 * time.Second, grain: blindSleep + ms},
		"at a message, although none": {ttl: -1, at: 7 * time.Second, grain: 3 * way},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				start := w.now()
				w.longest, w.deaf = c.longest, c.deaf
				w.occupy("a", c.ttl)
				if c.ttl < 0 {
					w.occupy("a", time.Hour)
				}
				p := w.proc()
				r := w.request("a", terms(30*time.Second))
				if c.ttl < 0 {
					r.Store = endless{r.Store.(*store)}
				}
				next := p.begin(context.Background(), r, false)
				w.until(start + c.at)
				if c.at != c.ttl {
					w.force("a")
				}
				a := <-next
				require.NoError(t, a.err)
				require.GreaterOrEqual(t, a.at, start+c.at)
				require.LessOrEqual(t, a.at, start+c.at+c.grain+ms)
				require.NoError(t, a.unlock())
			})
		})
	}
}

// endless says of every lock that it has no end.
type endless struct{ *store }

func (e endless) Take(ctx context.Context, owner string, block int) (Grant, error) {
	g, err := e.store.Take(ctx, owner, block)
	if !g.Taken {
		g.Left = -1
	}
	return g, err
}

func TestAReleaseBetweenRefusalAndSubscriptionIsNotLost(t *testing.T) {
	for _, after := range []time.Duration{0, 2 * way, ms, 30 * ms, 50 * ms} {
		t.Run(after.String(), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.listen = 50 * ms
				w.occupy("a", 30*time.Second)
				p := w.proc()
				start := w.now()
				next := p.begin(context.Background(), w.request("a", terms(30*time.Second)), false)
				w.until(start + 2*way + after)
				w.force("a")
				a := <-next
				require.NoError(t, a.err)
				require.Less(t, a.at, start+55*ms)
				require.NoError(t, a.unlock())
			})
		})
	}
}

func TestAMessageDuringAnAttemptIsNotLost(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.occupy("a", 30*time.Second)
		p := w.proc()
		start := w.now()
		next := p.begin(context.Background(), w.request("a", terms(30*time.Second)), false)
		time.Sleep(time.Second)
		w.plan(only("take", func(_ cmd, p *plan) { p.after = 50 * ms }))
		w.mu.Lock()
		w.publish("a") // an attempt begins
		w.mu.Unlock()
		time.Sleep(10 * ms)
		w.force("a")
		a := <-next
		require.NoError(t, a.err)
		require.Less(t, a.at, start+time.Second+110*ms)
		require.NoError(t, a.unlock())
	})
}

func TestWaitBoundsTheWaitAlone(t *testing.T) {
	t.Run("taken", func(t *testing.T) {
		in(t, func(t *testing.T, w *world) {
			w.occupy("a", 30*time.Second)
			p := w.proc()
			r := w.request("a", terms(30*time.Second))
			r.Wait = 2 * time.Second
			start := w.now()
			_, err := p.acquire(context.Background(), r, false)
			require.ErrorIs(t, err, fault.ErrNotAcquired)
			require.NotErrorIs(t, err, fault.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, start+r.Wait, w.now())
		})
	})
	t.Run("held by this process", func(t *testing.T) {
		in(t, func(t *testing.T, w *world) {
			p := w.proc()
			l := p.lock(w.request("a", terms(30*time.Second)))
			r := w.request("a", terms(30*time.Second))
			r.Wait = time.Second
			_, err := p.acquire(context.Background(), r, false)
			require.ErrorIs(t, err, fault.ErrNotAcquired)
			require.Len(t, w.sent("take"), 1)
			require.NoError(t, l.unlock())
		})
	})
	for name, trouble := range map[string]func(cmd, *plan){"errors": failing(notExecuted, true), "black hole": hole} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.plan(only("take", trouble))
				p := w.proc()
				r := w.request("a", terms(30*time.Second))
				r.Wait = time.Second
				start := w.now()
				_, err := p.acquire(context.Background(), r, false)
				require.ErrorIs(t, err, fault.ErrUnavailable)
				require.NotErrorIs(t, err, fault.ErrNotAcquired)
				require.Equal(t, start+r.Wait, w.now())
			})
		})
	}
	t.Run("a grant at the last moment counts", func(t *testing.T) {
		for range 50 {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(only("take", func(_ cmd, p *plan) { p.after = time.Second - p.before }))
				r := w.request("a", terms(30*time.Second))
				r.Wait = time.Second
				l, err := p.acquire(context.Background(), r, false)
				w.plan(nil)
				if err == nil {
					require.NoError(t, l.unlock())
				} else {
					require.ErrorIs(t, err, fault.ErrUnavailable)
				}
			})
		}
	})
}

func TestTheErrorTellsWhyTheWaitEnded(t *testing.T) {
	cause := errors.New("the user has left")
	ends := map[string]struct {
		ctx func() (context.Context, func())
		is  []error
		not []error
	}{
		"cancel": {func() (context.Context, func()) {
			ctx, cancel := context.WithCancel(context.Background())
			return ctx, cancel
		}, []error{context.Canceled}, []error{context.DeadlineExceeded}},
		"deadline": {func() (context.Context, func()) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			return ctx, func() { _ = cancel }
		}, []error{context.DeadlineExceeded}, []error{context.Canceled}},
		"cause": {func() (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(context.Background())
			return ctx, func() { cancel(cause) }
		}, []error{context.Canceled, cause}, []error{context.DeadlineExceeded}},
		"deadline with a cause": {func() (context.Context, func()) {
			ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, cause)
			return ctx, func() { _ = cancel }
		}, []error{context.DeadlineExceeded, cause}, []error{context.Canceled}},
	}
	for name, last := range map[string]struct {
		set func(w *world)
		is  []error
		not []error
	}{
		"taken": {func(w *world) { w.occupy("a", time.Hour) }, []error{fault.ErrNotAcquired}, []error{fault.ErrUnavailable}},
		"failing": {
			func(w *world) { w.plan(only("take", failing(notExecuted, true))) },
			[]error{fault.ErrUnavailable, errNetwork},
			[]error{fault.ErrNotAcquired},
		},
		"silent": {func(w *world) { w.plan(only("take", hole)) }, []error{fault.ErrUnavailable}, []error{fault.ErrNotAcquired, errNetwork}},
		"taken, then failing": {func(w *world) {
			w.occupy("a", 500*ms)
			w.plan(only("take", func(c cmd, p *plan) {
				if c.at > 1300*ms {
					p.err, p.skip = notExecuted(), true
				}
			}))
		}, []error{fault.ErrUnavailable, errNetwork}, []error{fault.ErrNotAcquired}},
	} {
		for end, e := range ends {
			t.Run(name+", "+end, func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					last.set(w)
					p := w.proc()
					ctx, cancel := e.ctx()
					start := w.now()
					next := p.begin(ctx, w.request("a", terms(30*time.Second)), false)
					w.until(start + time.Second)
					cancel()
					a := <-next
					require.Equal(t, start+time.Second, a.at)
					for _, is := range append(last.is, e.is...) {
						require.ErrorIs(t, a.err, is)
					}
					for _, not := range append(last.not, e.not...) {
						require.NotErrorIs(t, a.err, not)
					}
					var f *fault.Failure
					require.False(t, errors.As(a.err, &f))
				})
			})
		}
	}
}

// Somebody was told that the lock is taken, heard of its release, asked again, and left
// before the answer. Whoever comes then is told nothing by what was said before.
func TestAWordFromBeforeACallIsNoAnswerToIt(t *testing.T) {
	for _, once := range []bool{false, true} {
		t.Run(fmt.Sprint("once=", once), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				r := w.request("a", terms(30*time.Second))
				w.occupy("a", time.Hour)
				ctx, cancel := context.WithCancel(context.Background())
				first := p.begin(ctx, r, false)
				time.Sleep(100 * ms)
				w.plan(only("take", hole))
				w.force("a")
				time.Sleep(100 * ms)
				cancel()
				require.ErrorIs(t, (<-first).err, fault.ErrNotAcquired, "by the last word")

				short, cancel := context.WithTimeout(context.Background(), 100*ms)
				defer cancel()
				_, err := p.acquire(short, r, once)
				require.ErrorIs(t, err, fault.ErrUnavailable)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NotErrorIs(t, err, fault.ErrNotAcquired)
			})
		})
	}
}

func TestAnEndedContextAsksNobody(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for _, once := range []bool{false, true} {
			_, err := p.acquire(ctx, w.request("a", terms(time.Second)), once)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, fault.ErrUnavailable)
		}
		require.Empty(t, w.sent("take"))
	})
}

// Whoever leaves, at whatever moment: nothing is left of it, and those behind it
// get in.
func TestACancelAtEveryStageLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		set    func(w *world)
		cancel time.Duration // after it began
		free   time.Duration // when the lock is to be had, after it began
	}{
		"before the reply of a refusal": {func(w *world) { w.occupy("a", time.Second) }, way, time.Second},
		"with the reply of a refusal":   {func(w *world) { w.occupy("a", time.Second) }, 2 * way, time.Second},
		"while it subscribes":           {func(w *world) { w.occupy("a", time.Second); w.listen = 100 * ms }, 50 * ms, time.Second},
		"while it sleeps":               {func(w *world) { w.occupy("a", time.Second) }, 500 * ms, time.Second},
		"when the message comes": {func(w *world) {
			w.occupy("a", time.Hour)
			time.AfterFunc(time.Second-way, func() { w.force("a") })
		}, time.Second, time.Second},
		"before the attempt is executed": {func(*world) {}, way / 2, 0},
		"before the grant comes": {func(w *world) {
			w.plan(only("take", func(_ cmd, p *plan) { p.after = 100 * ms }))
		}, 50 * ms, 350 * ms}, // it waits for two round trips
		"with the grant": {func(*world) {}, 2 * way, 0},
		"during a failure": {func(w *world) {
			w.plan(only("take", func(c cmd, p *plan) {
				if c.at < 1010*ms {
					p.err = unknown()
				}
			}))
		}, way, 10 * ms},
		"during a pause": {func(w *world) {
			w.plan(only("take", func(c cmd, p *plan) {
				if c.at < 1500*ms {
					p.err = unknown()
				}
			}))
		}, 300 * ms, 500 * ms},
		"in a black hole": {func(w *world) {
			w.plan(only("take", func(c cmd, p *plan) { p.hole = c.at < 1010*ms }))
		}, time.Second, 3 * time.Second},
	} {
		for _, hand := range []int{0, 8} {
			t.Run(fmt.Sprintf("%s, handoff %d", name, hand), func(t *testing.T) {
				for range 20 {
					in(t, func(t *testing.T, w *world) {
						c.set(w)
						p := w.proc()
						r := w.request("a", terms(30*time.Second, handoff(hand)))
						start := w.now()
						ctx, cancel := context.WithCancel(context.Background())
						leaver := p.begin(ctx, r, false)
						second := p.begin(ctx, r, false) // from the middle of the queue
						patient, end := context.WithTimeout(context.Background(), time.Minute)
						defer end()
						third := p.begin(patient, r, false)
						w.until(start + c.cancel)
						cancel()
						for _, x := range []chan answer{leaver, second} {
							a := <-x
							require.LessOrEqual(t, a.at, start+max(c.cancel, 2*way), "it does not wait for its attempt")
							if a.err == nil {
								require.NoError(t, a.unlock())
								continue
							}
							require.ErrorIs(t, a.err, context.Canceled)
						}
						a := <-third
						require.NoError(t, a.err)
						require.LessOrEqual(t, a.at, start+max(c.cancel, c.free)+100*ms)
						require.Equal(t, a.Owner(), w.holder("a"))
						require.NoError(t, a.unlock())
					})
				}
			})
		}
	}
}

func TestAGrantWhoseCallerHasLeftGoesToTheNextOrBack(t *testing.T) {
	for name, next := range map[string]bool{"next": true, "back": false} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(only("take", func(_ cmd, p *plan) { p.after = 100 * ms }))
				r := w.request("a", terms(30*time.Second, handoff(1)))
				ctx, cancel := context.WithCancel(context.Background())
				leaver := p.begin(ctx, r, false)
				var c chan answer
				if next {
					c = p.begin(context.Background(), r, false)
				}
				time.Sleep(50 * ms)
				cancel()
				require.Error(t, (<-leaver).err)
				start := w.sent("take")[0].at
				if next {
					a := <-c
					require.True(t, a.r.Handoff)
					require.Equal(t, start+100*ms+way, a.at)
					require.Len(t, w.sent("take"), 1)
					require.NoError(t, a.unlock())
				}
				time.Sleep(200 * ms)
				require.Empty(t, w.holder("a"))
				require.Len(t, w.sent("release"), 1)
			})
		})
	}
}

func TestOnceAsksOnce(t *testing.T) {
	background := context.Background()
	for name, f := range map[string]func(t *testing.T, w *world, p *proc, r *Request){
		"free": func(t *testing.T, w *world, p *proc, r *Request) {
			l, err := p.acquire(background, r, true)
			require.NoError(t, err)
			require.Zero(t, w.subbed)
			require.NoError(t, l.unlock())
		},
		"taken": func(t *testing.T, w *world, p *proc, r *Request) {
			w.occupy("a", time.Hour)
			start := w.now()
			_, err := p.acquire(background, r, true)
			require.Equal(t, fault.ErrNotAcquired, err)
			require.Equal(t, start+2*way, w.now())
			require.Len(t, w.sent("take"), 1)
			require.Zero(t, w.subbed)
		},
		"held by this process": func(t *testing.T, w *world, p *proc, r *Request) {
			l := p.lock(r)
			_, err := p.acquire(background, r, true)
			require.Equal(t, fault.ErrNotAcquired, err)
			require.Len(t, w.sent("take"), 1)
			require.NoError(t, l.unlock())
		},
		"behind a queue that was refused": func(t *testing.T, w *world, p *proc, r *Request) {
			w.occupy("a", time.Second)
			next := p.begin(background, r, false)
			time.Sleep(100 * ms)
			w.forget()
			_, err := p.acquire(background, r, true)
			require.Equal(t, fault.ErrNotAcquired, err)
			require.Empty(t, w.sent("take"))
			require.NoError(t, (<-next).unlock())
		},
		"during an attempt that is refused": func(t *testing.T, w *world, p *proc, r *Request) {
			w.occupy("a", time.Second)
			next := p.begin(background, r, false)
			start := w.now()
			_, err := p.acquire(background, r, true)
			require.Equal(t, fault.ErrNotAcquired, err)
			require.Equal(t, start+2*way, w.now())
			require.Len(t, w.sent("take"), 1)
			require.NoError(t, (<-next).unlock())
		},
		"during an attempt that is granted": func(t *testing.T, w *world, p *proc, r *Request) {
			next := p.begin(background, r, false)
			_, err := p.acquire(background, r, true)
			require.Equal(t, fault.ErrNotAcquired, err)
			require.Len(t, w.sent("take"), 1)
			require.NoError(t, (<-next).unlock())
		},
		"during an attempt that fails": func(t *testing.T, w *world, p *proc, r *Request) {
			w.plan(only("take", failing(notExecuted, true)))
			next := p.begin(background, r, false)
			_, err := p.acquire(background, r, true)
			require.ErrorIs(t, err, fault.ErrUnavailable)
			require.ErrorIs(t, err, errNetwork)
			w.plan(nil)
			require.NoError(t, (<-next).unlock())
		},
		"failing": func(t *testing.T, w *world, p *proc, r *Request) {
			w.plan(only("take", failing(notExecuted, true)))
			_, err := p.acquire(background, r, true)
			require.ErrorIs(t, err, fault.ErrUnavailable)
			require.ErrorIs(t, err, errNetwork)
			require.Len(t, w.sent("take"), 1)
			require.Empty(t, told(p, &p.retried))
			require.Empty(t, w.sent("release"))
		},
		"unknown": func(t *testing.T, w *world, p *proc, r *Request) {
			w.plan(only("take", failing(unknown, false)))
			_, err := p.acquire(background, r, true)
			require.ErrorIs(t, err, fault.ErrUnavailable)
			time.Sleep(10 * ms)
			require.Empty(t, w.holder("a"))
			require.Equal(t, 1, p.Stats().Condemned)
		},
		"black hole": func(t *testing.T, w *world, p *proc, r *Request) {
			w.plan(only("take", func(_ cmd, p *plan) { p.hole = true }))
			start := w.now()
			_, err := p.acquire(background, r, true)
			require.ErrorIs(t, err, fault.ErrUnavailable)
			require.Equal(t, start+3*time.Second, w.now())
			time.Sleep(10 * ms)
			require.Empty(t, w.holder("a"))
		},
		"several at once": func(t *testing.T, w *world, p *proc, r *Request) {
			var all []chan answer
			for range 10 {
				all = append(all, p.begin(background, r, true))
			}
			a := <-all[0]
			require.NoError(t, a.err)
			for _, c := range all[1:] {
				require.Equal(t, fault.ErrNotAcquired, (<-c).err)
			}
			require.NoError(t, a.unlock())
			require.Len(t, w.sent("take"), 1)
		},
		"wait is not for it": func(t *testing.T, w *world, p *proc, r *Request) {
			r.Wait = 1
			l, err := p.acquire(background, r, true)
			require.NoError(t, err)
			require.NoError(t, l.unlock())
		},
		"no handover to it": func(t *testing.T, w *world, p *proc, r *Request) {
			r.Terms.Handoff = 5
			w.plan(only("take", func(_ cmd, p *plan) { p.after = 100 * ms }))
			ctx, cancel := context.WithCancel(background)
			leaver := p.begin(ctx, r, false)
			try := p.begin(background, r, true)
			cancel()
			require.Error(t, (<-leaver).err)
			require.Equal(t, fault.ErrNotAcquired, (<-try).err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				f(t, w, w.proc(), w.request("a", terms(30*time.Second)))
				require.Equal(t, 1, w.mostTake)
			})
		})
	}
}

func TestTroubleIsRiddenOut(t *testing.T) {
	for name, trouble := range map[string]func(cmd, *plan){
		"not executed":          failing(notExecuted, true),
		"unknown":               failing(unknown, true),
		"unknown, but executed": failing(unknown, false),
		"some other error":      failing(func() error { return errNetwork }, true),
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.plan(only("take", trouble))
				p := w.proc()
				start := w.now()
				next := p.begin(context.Background(), w.request("a", terms(30*time.Second)), false)
				w.until(start + 2*time.Second)
				w.plan(nil)
				takes := w.sent("take")
				a := <-next
				require.NoError(t, a.err)
				require.LessOrEqual(t, a.at, start+2*time.Second+100*ms)
				for i := 1; i < len(takes); i++ {
					pause := takes[i].at - takes[i-1].at - 2*way
					require.LessOrEqual(t, pause, longestBackoff)
					require.GreaterOrEqual(t, pause, 2*ms)
				}
				require.LessOrEqual(t, len(takes), 60)
				require.Equal(t, a.r.Attempts, len(w.sent("take")))
				require.Len(t, told(p, &p.retried), a.r.Attempts-1)
				for _, err := range told(p, &p.retried) {
					require.Equal(t, errNetwork, err)
				}
				require.Len(t, owners(w.sent("take")), 1)
				require.NoError(t, a.unlock())
			})
		})
	}
}

func TestAFatalErrorEndsTheCallAtOnceAndOnlyThat(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.plan(only("take", func(c cmd, p *plan) {
			if c.owner == "process 1:1" {
				p.err, p.skip = fatal(), true
			}
		}))
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		start := w.now()
		first := p.begin(context.Background(), r, false)
		second := p.begin(context.Background(), r, false)
		a := <-first
		require.Equal(t, fault.ErrWrongType, a.err)
		require.Equal(t, start+2*way, a.at)
		a = <-second
		require.NoError(t, a.err)
		require.NoError(t, a.unlock())
		require.Empty(t, told(p, &p.retried))
	})
}

func TestTwoProcessesShareALockFairly(t *testing.T) {
	for name, c := range map[string]struct {
		handoff, goroutines int
		section             time.Duration
	}{
		"short sections, long runs":  {64, 20, 50 * time.Microsecond},
		"short sections, no handoff": {0, 20, 50 * time.Microsecond},
		"long sections":              {64, 20, 20 * ms},
		"one against one":            {64, 1, ms},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				const run = 4 * time.Second
				ctx, cancel := context.WithTimeout(context.Background(), run)
				defer cancel()
				var mu sync.Mutex
				held := map[*proc]time.Duration{}
				count := map[*proc]int{}
				longest := time.Duration(0)
				inside := 0
				var wg sync.WaitGroup
				for range 2 {
					p := w.proc()
					r := w.request("a", terms(30*time.Second, handoff(c.handoff)))
					for range c.goroutines {
						wg.Go(func() {
							for {
								l, err := p.acquire(ctx, r, false)
								if err != nil {
									return
								}
								mu.Lock()
								inside++
								require.Equal(w, 1, inside)
								count[p]++
								held[p] += c.section
								longest = max(longest, l.r.Waited)
								mu.Unlock()
								time.Sleep(c.section)
								mu.Lock()
								inside--
								mu.Unlock()
								require.NoError(w, l.unlock())
							}
						})
					}
				}
				wg.Wait()
				a, b := count[w.procs[0]], count[w.procs[1]]
				t.Logf("%d and %d holds, %d takes, longest wait %v", a, b, len(w.sent("take")), longest)
				require.Less(t, a, 2*b)
				require.Less(t, b, 2*a)
				// Each waits for all others, and for as many runs of the other process.
				turns := 2*time.Duration(c.goroutines)*(c.section+2*ms) + 10*handoffTime
				require.Less(t, longest, 2*turns)
			})
		})
	}
}

func TestTheOtherProcessGetsItsTurnAfterARun(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		one, two := w.proc(), w.proc()
		tt := terms(30*time.Second, handoff(4))
		r1, r2 := w.request("a", tt), w.request("a", tt)
		var mu sync.Mutex
		var order []string
		work := func(p *proc, r *Request) {
			l, err := p.acquire(context.Background(), r, false)
			require.NoError(w, err)
			mu.Lock()
			order = append(order, p.name)
			mu.Unlock()
			time.Sleep(100 * time.Microsecond)
			require.NoError(w, l.unlock())
		}
		first := one.lock(r1)
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() { work(one, r1) })
			synctest.Wait()
		}
		wg.Go(func() { work(two, r2) })
		time.Sleep(100 * ms)
		require.NoError(t, first.unlock())
		wg.Wait()
		require.Contains(t, order[:6], two.name, "%v", order)
	})
}

func TestAfterAReleaseTheNextOfThisProcessIsNotHeldUpForLong(t *testing.T) {
	for _, joinable := range []bool{false, true} {
		in(t, func(t *testing.T, w *world) {
			w.joinable = joinable
			p := w.proc()
			r := w.request("a", terms(30*time.Second))
			l := p.lock(r)
			next := p.begin(context.Background(), r, false)
			time.Sleep(100 * ms)
			start := w.now()
			require.NoError(t, l.unlock())
			a := <-next
			require.LessOrEqual(t, a.at, start+5*ms)
			require.NoError(t, a.unlock())
		})
	}
}

func TestTheQueueOfALostHoldGoesOn(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(900*ms, maxHold(time.Second)))
		l := p.lock(r)
		var all []chan answer
		for range 3 {
			all = append(all, p.begin(context.Background(), r, false))
		}
		for _, c := range all {
			a := <-c
			require.NoError(t, a.err)
			require.GreaterOrEqual(t, a.at, l.endedAt(), "the context ended first")
			require.LessOrEqual(t, a.at, l.endedAt()+910*ms)
			l = a.held
			<-l.ctx.Done()
		}
	})
}

// A hub may be slow, and call late.
type slowHub struct {
	*store
	listener Listener
	stops    int
}

func (s *slowHub) Subscribe(l Listener) (stop func()) {
	s.listener = l
	time.Sleep(100 * ms)
	end := s.store.Subscribe(l)
	return func() { s.stops++; end() }
}

func TestASubscriptionThatIsNotWantedAnyMoreIsStopped(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.occupy("a", time.Hour)
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		hub := &slowHub{store: r.Store.(*store)}
		r.Store = hub
		next := p.begin(context.Background(), r, false)
		time.Sleep(50 * ms)
		require.NoError(t, p.Close(context.Background()))
		require.Equal(t, fault.ErrClosed, (<-next).err)
		require.Equal(t, 1, hub.stops)
		hub.listener.Notify(Message) // late
		hub.listener.Notify(Look)
	})
}

func TestASignalToAQueueThatIsGoneReachesNoOther(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.occupy("a", time.Second)
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		hub := &slowHub{store: r.Store.(*store)}
		r.Store = hub
		require.NoError(t, p.lock(r).unlock())
		l := p.lock(w.request("a", terms(30*time.Second)))
		hub.listener.Notify(Message)
		time.Sleep(10 * ms)
		require.Empty(t, w.sent("renew"))
		require.NoError(t, l.unlock())
	})
}

// A process that lets others go first does not ask for a while. Who calls then, and
// leaves before it asks, has not met a lock that was taken.
func TestOnlyWhoMetTheLockTakenIsToldSo(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		stop := r.Store.Subscribe(nobody{})
		defer stop()
		time.Sleep(ms)
		l := p.lock(r)
		patient := p.begin(context.Background(), r, false)
		synctest.Wait()
		early, end := context.WithTimeout(context.Background(), 2*way+100*time.Microsecond)
		defer end()
		met := p.begin(early, r, false)
		synctest.Wait()
		require.NoError(t, l.unlock())
		late, end := context.WithTimeout(context.Background(), 100*time.Microsecond)
		defer end()
		time.Sleep(time.Microsecond)
		missed := p.begin(late, r, false)
		require.ErrorIs(t, (<-met).err, fault.ErrNotAcquired)
		require.ErrorIs(t, (<-missed).err, fault.ErrUnavailable)
		a := <-patient
		require.NoError(t, a.err)
		require.NoError(t, a.unlock())
	})
}
