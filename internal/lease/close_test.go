package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// closing closes p on a goroutine; the error comes when it has.
func (p *proc) closing(ctx context.Context) chan error {
	c := make(chan error, 1)
	go func() { c <- p.Close(ctx) }()
	synctest.Wait()
	return c
}

func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestCloseOfAnIdleKeeperIsQuick(t *testing.T) {
	for name, before := range map[string]func(p *proc, r *Request){
		"fresh": func(*proc, *Request) {},
		"used":  func(p *proc, r *Request) { require.NoError(p.w, p.lock(r).unlock()) },
	} {
		for _, ctx := range []context.Context{context.Background(), over()} {
			t.Run(name, func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					p := w.proc()
					r := w.request("a", terms(time.Second))
					before(p, r)
					start := w.now()
					require.NoError(t, p.Close(ctx))
					require.NoError(t, p.Close(ctx))
					require.Equal(t, start, w.now())
					for _, once := range []bool{false, true} {
						_, err := p.acquire(context.Background(), r, once)
						require.Equal(t, fault.ErrClosed, err)
					}
				})
			})
		}
	}
}

func TestCloseRefusesWhoeverWaits(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(w *world)
		sleep time.Duration
	}{
		"asleep":               {func(w *world) { w.occupy("a", time.Hour) }, time.Second},
		"in an attempt":        {func(*world) {}, 0},
		"in a slow attempt":    {func(w *world) { w.plan(only("take", func(_ cmd, p *plan) { p.after = 100 * ms })) }, 50 * ms},
		"in a black hole":      {func(w *world) { w.plan(only("take", func(_ cmd, p *plan) { p.hole = true })) }, 50 * ms},
		"in a pause":           {func(w *world) { w.plan(only("take", failing(unknown, false))) }, 500 * ms},
		"while it subscribes":  {func(w *world) { w.occupy("a", time.Hour); w.listen = time.Second }, 50 * ms},
		"while its lock lives": {func(w *world) { w.occupy("a", 50*ms) }, 50 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				c.set(w)
				r := w.request("a", terms(time.Hour, handoff(5)))
				var all []chan answer
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				for range 5 {
					all = append(all, p.begin(ctx, r, false))
				}
				time.Sleep(c.sleep)
				start := w.now()
				closed := p.closing(context.Background())
				for _, x := range all {
					if a := <-x; a.err == nil {
						require.NoError(t, a.unlock())
					} else {
						require.Equal(t, fault.ErrClosed, a.err)
						require.LessOrEqual(t, a.at, start+2*way)
					}
				}
				require.NoError(t, <-closed)
				require.Zero(t, p.Stats())
				if holder := w.holder("a"); holder != "foreigner" {
					require.Empty(t, holder, "a grant that came too late is given back")
				}
				w.plan(nil)
			})
		})
	}
}

// A caller whose context cannot end asks the store itself, and hears of Close
// when the store has answered.
func TestCloseRefusesACallerThatAsksItself(t *testing.T) {
	for name, reply := range map[string]func(cmd, *plan){
		"granted":    func(_ cmd, p *plan) { p.after = time.Second },
		"black hole": func(_ cmd, p *plan) { p.hole = true },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(only("take", reply))
				start := w.now()
				r := w.request("a", terms(time.Hour))
				asker, waiter := p.begin(context.Background(), r, false), p.begin(context.Background(), r, false)
				closed := p.closing(context.Background())
				require.Equal(t, fault.ErrClosed, (<-waiter).err)
				require.Equal(t, start, w.now())
				require.Equal(t, fault.ErrClosed, (<-asker).err)
				require.LessOrEqual(t, w.now(), start+3*time.Second)
				require.NoError(t, <-closed)
				require.Empty(t, w.holder("a"))
			})
		})
	}
}

func TestCloseWaitsForTheHolders(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(900*ms)))
		closed := p.closing(context.Background())
		time.Sleep(time.Minute)
		require.Equal(t, Held, l.state(), "renewed meanwhile")
		inner, _, err := p.enter(l)
		require.NoError(t, err, "nested leases are still given")
		require.NoError(t, inner.unlock())
		require.Empty(t, closed)
		require.NoError(t, p.Close(context.Background()), "the second call waits for nothing")
		require.NoError(t, l.unlock())
		require.NoError(t, <-closed)
		require.Empty(t, w.holder("a"))
		require.Empty(t, told(p, &p.lost))
	})
}

func TestCloseEndsTheHoldsThatRemainBeforeItReleasesThem(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		res, err := p.Acquire(context.Background(), r, false)
		require.NoError(t, err)
		var m Member
		res.Hold.Join(context.Background(), &m, func(cause error) {
			require.ErrorIs(w, cause, fault.ErrLost)
			time.Sleep(5 * ms)
			synctest.Wait()
			require.Equal(w, res.Hold.Owner(), w.holder("a"))
			require.Empty(w, w.sent("release"))
		})
		others := p.lockAll(w.requests(5, terms(30*time.Second)))
		start := w.now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.Close(ctx), context.DeadlineExceeded)
		require.GreaterOrEqual(t, w.now(), start+time.Second)
		require.Less(t, w.now(), start+1010*ms)
		require.Empty(t, w.holder("a"))
		require.Len(t, told(p, &p.lost), 6)
		require.Zero(t, p.Stats())
		for _, l := range others {
			require.Equal(t, fault.Closed, l.reason())
			require.Less(t, l.endedAt(), start+1010*ms)
			require.Equal(t, Lost, l.state())
			require.ErrorIs(t, l.unlock(), fault.ErrLost)
		}
		require.Len(t, w.sent("release"), 6)
	})
}

func TestCloseIsBoundedAndThenNothingIsLeft(t *testing.T) {
	for name, trouble := range map[string]func(cmd, *plan){
		"black hole":   hole,
		"errors":       failing(notExecuted, true),
		"lost replies": failing(unknown, false),
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(only("take", func(c cmd, p *plan) {
					if c.at < 1001*ms {
						p.err = unknown()
					}
				}))
				all := p.lockAll(w.requests(3, terms(time.Minute))) // tainted
				w.plan(only("take", failing(unknown, false)))
				_, err := p.acquire(context.Background(), w.request("condemned", terms(time.Minute)), true)
				require.Error(t, err)
				w.plan(only("release", trouble))
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				start := w.now()
				require.ErrorIs(t, p.Close(ctx), context.DeadlineExceeded)
				require.LessOrEqual(t, w.now(), start+time.Second+3*time.Second+longestBackoff)
				w.forget()
				time.Sleep(3*time.Second + longestBackoff)
				require.Zero(t, p.Stats())
				w.forget()
				time.Sleep(5 * time.Minute)
				require.Empty(t, w.cmds, "nothing is sent any more")
				for _, l := range all {
					require.Equal(t, fault.Closed, l.reason())
				}
				clear(w.locks)
			})
		})
	}
}

func TestCloseSweepsOnceMore(t *testing.T) {
	for name, ctx := range map[string]context.Context{"background": context.Background(), "over": over()} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(apart(func(c cmd, p *plan) {
					if c.op == "take" {
						p.err, p.skip, p.copies = unknown(), true, []time.Duration{5 * time.Second}
					}
				}))
				const n = 200
				for _, key := range keys(n) {
					go func() { _, _ = p.acquire(context.Background(), w.request(key, terms(time.Hour)), true) }()
				}
				time.Sleep(5*time.Second + 300*ms)
				require.Equal(t, n, p.Stats().Condemned)
				w.plan(nil)
				w.forget()
				start := w.now()
				require.NoError(t, p.Close(ctx))
				require.Less(t, w.now(), start+100*ms)
				require.Zero(t, p.Stats())
				require.Len(t, owners(w.sent("release")), n)
				for _, key := range keys(n) {
					require.Empty(t, w.holder(key))
				}
			})
		})
	}
}

func TestCloseWaitsForASweepUnderWay(t *testing.T) {
	for name, ctx := range map[string]context.Context{"background": context.Background(), "over": over()} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(func(c cmd, p *plan) {
					if p.err = unknown(); c.op == "release" {
						p.before, p.err = 500*ms, nil
					}
				})
				start := w.now()
				_, err := p.acquire(context.Background(), w.request("a", terms(time.Hour)), true)
				require.Error(t, err)
				time.Sleep(100 * ms)
				require.Equal(t, Stats{Condemned: 1, Running: 1}, p.Stats())
				require.NoError(t, p.Close(ctx))
				require.Zero(t, p.Stats())
				require.Empty(t, w.holder("a"))
				require.Less(t, w.now(), start+3*time.Second)
			})
		})
	}
}

func TestCloseKeepsTheMinimumOfALock(t *testing.T) {
	for name, c := range map[string]struct{ tainted, unlocked bool }{
		"held":              {false, false},
		"unlocked":          {false, true},
		"tainted, held":     {true, false},
		"tainted, unlocked": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(only("take", func(k cmd, p *plan) {
					if c.tainted && k.at < 1001*ms {
						p.err = unknown()
					}
				}))
				l := p.lock(w.request("a", terms(30*time.Second, minHold(time.Minute))))
				granted := w.now()
				time.Sleep(time.Second)
				if c.unlocked {
					require.NoError(t, l.unlock())
				}
				_ = p.Close(over())
				w.until(granted + time.Minute - 10*ms)
				require.Equal(t, l.Owner()+":released", w.holder("a"))
				w.until(granted + time.Minute + 10*ms)
				require.Empty(t, w.holder("a"))
			})
		})
	}
}

func TestAnUnlockDuringCloseIsToldWhatItWas(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(30*time.Second)))
		w.plan(only("release", func(_ cmd, p *plan) { p.after = 100 * ms }))
		closed := p.closing(over())
		require.ErrorIs(t, l.unlock(), fault.ErrLost)
		require.ErrorIs(t, <-closed, context.Canceled)
		require.Len(t, w.sent("release"), 1)
		require.Equal(t, fault.Closed, l.reason())
	})
}

func TestCloseDuringAReleaseWaitsForIt(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(30*time.Second)))
		w.plan(only("release", func(_ cmd, p *plan) { p.after = 100 * ms }))
		start := w.now()
		done := make(chan error, 1)
		go func() { done <- l.unlock() }()
		synctest.Wait()
		require.NoError(t, p.Close(over()), "no hold remained")
		require.Equal(t, start+100*ms+way, w.now())
		require.NoError(t, <-done)
		require.Empty(t, told(p, &p.lost))
	})
}
