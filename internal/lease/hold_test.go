package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

func grace(d time.Duration) func(t *Terms)   { return func(t *Terms) { t.Grace = d } }
func maxHold(d time.Duration) func(t *Terms) { return func(t *Terms) { t.MaxHold = d } }
func minHold(d time.Duration) func(t *Terms) { return func(t *Terms) { t.MinHold = d } }

func TestGraceKeepsALockForAWhileAfterItsCallersContextEnded(t *testing.T) {
	const lease = 900 * ms
	for _, g := range []time.Duration{0, 100 * ms, 2 * lease, 20 * lease} {
		t.Run(g.String(), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				ctx, cancel := context.WithCancel(context.Background())
				l, err := p.acquire(ctx, w.request("a", terms(lease, grace(g))), false)
				require.NoError(t, err)
				time.Sleep(3 * lease)
				cancel()
				end := w.now()
				w.forget()
				w.until(end + g)
				synctest.Wait()
				require.NoError(t, l.ctx.Err(), "grace counts from when a renewal sees it")
				require.Equal(t, Held, l.state())
				require.GreaterOrEqual(t, len(w.sent("renew")), int(g/(lease/3)))
				time.Sleep(lease / 3)
				synctest.Wait()
				require.Equal(t, fault.Abandoned, l.reason())
				require.Greater(t, l.endedAt(), end+g)
				require.LessOrEqual(t, l.endedAt(), end+g+lease/3)
				require.Equal(t, Lost, l.state())
				require.ErrorIs(t, l.unlock(), fault.ErrLost)

				w.forget()
				require.NotEmpty(t, w.holder("a"), "it ends with its lease")
				time.Sleep(2 * lease)
				require.Empty(t, w.sent("renew"))
				require.Empty(t, w.sent("release"))
			})
		})
	}
}

func TestNegativeGraceRenewsUntilUnlock(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		ctx, cancel := context.WithCancel(context.Background())
		l, err := p.acquire(ctx, w.request("a", terms(900*ms, grace(-1))), false)
		require.NoError(t, err)
		cancel()
		time.Sleep(time.Hour)
		require.Equal(t, Held, l.state())
		require.NoError(t, l.unlock())
	})
}

func TestANestedLeaseWithALiveCallerKeepsTheLock(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const lease = 900 * ms
		p := w.proc()
		ctx1, cancel1 := context.WithCancel(context.Background())
		ctx2, cancel2 := context.WithCancel(context.Background())
		l, err := p.acquire(ctx1, w.request("a", terms(lease, grace(lease))), false)
		require.NoError(t, err)
		n, err := l.Enter(ctx2, 0)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		inner := p.join(ctx2, l.Hold)
		cancel1()
		time.Sleep(10 * lease)
		require.Equal(t, Held, l.state())
		cancel2()
		end := w.now()
		time.Sleep(2 * lease)
		for _, m := range []*held{l, inner} {
			require.Equal(t, fault.Abandoned, m.reason())
			require.Greater(t, m.endedAt(), end+lease)
			require.LessOrEqual(t, m.endedAt(), end+lease+lease/3)
		}
	})
}

// Whichever of two callers it is that is left, and whichever came first.
func TestAHoldLastsAsLongAsAnyOfItsCallers(t *testing.T) {
	for name, endsFirst := range map[string]int{"the outer one ends": 0, "the inner one ends": 1} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				outer, cancelOuter := context.WithCancel(context.Background())
				inner, cancelInner := context.WithCancel(context.Background())
				l, err := p.acquire(outer, w.request("a", terms(3*time.Second, grace(2*time.Second))), false)
				require.NoError(t, err)
				_, err = l.Enter(context.Background(), 0)
				require.NoError(t, err)
				m := p.join(inner, l.Hold)
				cancels := []context.CancelFunc{cancelOuter, cancelInner}
				time.Sleep(2 * time.Second)
				cancels[endsFirst]()
				time.Sleep(20 * time.Second)
				require.Equal(t, Held, l.state())
				cancels[1-endsFirst]()
				time.Sleep(4 * time.Second)
				require.Equal(t, fault.Abandoned, l.reason())
				require.Equal(t, fault.Abandoned, m.reason())
			})
		})
	}
}

// Of two callers the one leaves whose context has not ended.
func TestTheContextOfALeaseThatWasUnlockedKeepsNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		ctx, cancel := context.WithCancel(context.Background())
		l, err := p.acquire(ctx, w.request("a", terms(3*time.Second, grace(2*time.Second))), false)
		require.NoError(t, err)
		m, _, err := p.enter(l)
		require.NoError(t, err)
		cancel()
		time.Sleep(10 * time.Second)
		require.Equal(t, Held, l.state())
		require.NoError(t, m.unlock())
		time.Sleep(4 * time.Second)
		require.Equal(t, fault.Abandoned, l.reason())
	})
}

func TestReentryDuringTheGraceKeepsTheLock(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const lease = 900 * ms
		p := w.proc()
		ctx, cancel := context.WithCancel(context.Background())
		l, err := p.acquire(ctx, w.request("a", terms(lease, grace(lease))), false)
		require.NoError(t, err)
		cancel()
		time.Sleep(lease)
		inner, _, err := p.enter(l)
		require.NoError(t, err)
		time.Sleep(10 * lease)
		require.NoError(t, l.ctx.Err())
		require.NoError(t, inner.unlock())
		time.Sleep(2 * lease)
		require.Equal(t, fault.Abandoned, l.reason())
	})
}

func TestMaxHoldEndsAHoldExactly(t *testing.T) {
	for _, limit := range []time.Duration{50 * ms, 300 * ms, 10 * time.Second} {
		t.Run(limit.String(), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", terms(900*ms, maxHold(limit))))
				granted := w.now()
				w.until(granted + limit - 1)
				synctest.Wait()
				require.NoError(t, l.ctx.Err())
				w.until(granted + limit)
				synctest.Wait()
				require.Equal(t, granted+limit, l.endedAt())
				require.Equal(t, fault.MaxHold, l.reason())
				require.Equal(t, Lost, l.state())
				w.forget()
				time.Sleep(5 * time.Second)
				require.Empty(t, w.sent("renew"))
				require.Empty(t, w.sent("release"), "it ends with its lease")
				require.ErrorIs(t, l.unlock(), fault.ErrLost)
			})
		})
	}
}

func TestMaxHoldCountsForEachHoldOfATenure(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(900*ms, maxHold(400*ms), handoff(4)))
		a := p.lock(r)
		next := p.begin(context.Background(), r, false)
		time.Sleep(3 * ms)
		require.NoError(t, a.unlock())
		b, ok := got(next)
		require.True(t, ok)
		require.True(t, b.r.Handoff)
		time.Sleep(time.Second)
		require.Equal(t, b.at+400*ms, b.endedAt())
		require.Equal(t, fault.MaxHold, b.reason())
	})
}

func TestAFixedLeaseIsNeverRenewed(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		sent := w.now()
		l := p.lock(w.request("a", terms(3*time.Second, fixed)))
		time.Sleep(10 * time.Second)
		require.Empty(t, w.sent("renew"))
		require.Equal(t, limit(sent, 3*time.Second), l.endedAt())
		require.Equal(t, fault.Expired, l.reason())
	})
}

func TestExtendMovesTheDeadlineOfAFixedLease(t *testing.T) {
	for name, lease := range map[string]time.Duration{"longer": 20 * time.Second, "shorter": 500 * ms} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", terms(3*time.Second, fixed)))
				time.Sleep(time.Second)
				w.plan(only("renew", func(_ cmd, p *plan) { p.after = 100 * ms }))
				sent := w.now()
				require.NoError(t, l.Extend(context.Background(), &l.m, lease))
				require.Equal(t, limit(sent, lease)-w.now(), l.remaining())
				require.Equal(t, []Renewal{{"a", l.Owner(), lease}}, w.sent("renew")[0].locks)
				_, _, left := w.look("a")
				require.Greater(t, left, l.remaining(), "the store never takes time away")
				w.until(limit(sent, lease))
				synctest.Wait()
				require.Equal(t, limit(sent, lease), l.endedAt())
			})
		})
	}
}

func TestExtendTellsWhatCameOfIt(t *testing.T) {
	background := context.Background()
	for name, c := range map[string]struct {
		spoil  func(w *world, l *held)
		is     error
		reason fault.Reason // of the loss, if the lease ended
	}{
		"taken":        {func(w *world, _ *held) { w.occupy("a", time.Second) }, fault.ErrLost, fault.Taken},
		"expired":      {func(w *world, _ *held) { w.remove("a") }, fault.ErrLost, fault.Expired},
		"not executed": {func(w *world, _ *held) { w.plan(only("renew", failing(notExecuted, true))) }, fault.ErrUnavailable, ""},
		"fatal":        {func(w *world, _ *held) { w.plan(only("renew", failing(fatal, true))) }, fault.ErrWrongType, ""},
		"unknown":      {func(w *world, _ *held) { w.plan(only("renew", failing(unknown, true))) }, fault.ErrUnknown, ""},
		"black hole":   {func(w *world, _ *held) { w.plan(only("renew", hole)) }, fault.ErrUnknown, fault.Expired},
		"late": {func(w *world, _ *held) {
			w.plan(only("renew", func(_ cmd, p *plan) { p.stubborn, p.after = true, 3*time.Second }))
		}, fault.ErrLost, fault.Expired},
		"at the deadline": {func(w *world, l *held) {
			w.plan(only("renew", func(_ cmd, p *plan) { p.stubborn, p.after = true, l.remaining()-p.before }))
		}, fault.ErrLost, fault.Expired},
		"released meanwhile": {func(w *world, l *held) {
			w.plan(only("renew", func(_ cmd, p *plan) { p.after = 100 * ms }))
			time.AfterFunc(50*ms, func() { _ = l.unlock() })
		}, fault.ErrNotHeld, ""},
		"lost meanwhile": {func(w *world, l *held) {
			w.plan(only("renew", func(_ cmd, p *plan) { p.after = 100 * ms }))
			time.AfterFunc(50*ms, func() {
				l.keeper.mu.Lock()
				lost := l.keeper.lose(l.Hold, fault.Closed, nil)
				l.keeper.mu.Unlock()
				l.keeper.tellLost([]*Hold{lost})
			})
		}, fault.ErrLost, fault.Closed},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				sent := w.now()
				l := p.lock(w.request("a", terms(3*time.Second, fixed)))
				time.Sleep(time.Second)
				c.spoil(w, l)
				err := l.Extend(background, &l.m, 20*time.Second)
				require.ErrorIs(t, err, c.is)
				synctest.Wait()
				require.Equal(t, c.reason, l.reason())
				if l.ctx.Err() == nil {
					require.Equal(t, limit(sent, 3*time.Second)-w.now(), l.remaining(), "unchanged")
					require.NoError(t, l.unlock())
				}
				err = l.Extend(background, &l.m, time.Second)
				if c.reason == "" {
					require.ErrorIs(t, err, fault.ErrNotHeld)
				} else {
					require.ErrorIs(t, err, fault.ErrLost)
				}
			})
		})
	}
}

func TestExtendLeavesTheDeadlineWhenItsCallerLeaves(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		start := w.now()
		l := p.lock(w.request("a", terms(3*time.Second, fixed)))
		w.plan(only("renew", func(_ cmd, p *plan) { p.after = 100 * ms }))
		ctx, cancel := context.WithTimeout(context.Background(), 50*ms)
		defer cancel()
		sent := w.now()
		err := l.Extend(ctx, &l.m, 10*time.Second)
		require.ErrorIs(t, err, fault.ErrUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, sent+50*ms, w.now())
		time.Sleep(100 * ms)
		require.Equal(t, limit(start, 3*time.Second)-w.now(), l.remaining(), "as its caller was told")
		require.NoError(t, l.unlock())
	})
}

func TestMinHoldIsPassedToTheRelease(t *testing.T) {
	for name, after := range map[string]time.Duration{"early": 200 * ms, "late": 1500 * ms} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", terms(900*ms, minHold(time.Second))))
				granted := w.now()
				time.Sleep(after)
				require.NoError(t, l.unlock())
				require.Equal(t, max(0, time.Second-after), w.sent("release")[0].d)
				next := p.lock(w.request("a", terms(900*ms)))
				require.GreaterOrEqual(t, w.now(), granted+time.Second)
				require.Less(t, w.now(), granted+max(time.Second, after)+5*ms)
				require.NoError(t, next.unlock())
			})
		})
	}
}

func TestAMessageThatThisProcessDidNotCauseHasTheLockRenewedAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(w *world, p *proc)
		reason fault.Reason
	}{
		"forced":                {func(w *world, _ *proc) { w.force("a") }, fault.Forced},
		"forced and taken":      {func(w *world, _ *proc) { w.force("a"); w.occupy("a", time.Second) }, fault.Forced},
		"suspected":             {func(w *world, p *proc) { w.remove("a"); p.Suspect(ID{"fake", "a"}) }, fault.Forced},
		"suspected, but ours":   {func(_ *world, p *proc) { p.Suspect(ID{"fake", "a"}) }, ""},
		"another one suspected": {func(_ *world, p *proc) { p.Suspect(ID{"fake", "b"}) }, "-"},
		"message, but ours": {func(w *world, _ *proc) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.publish("a")
		}, ""},
	} {
		for _, kind := range []func(*Terms){fixed, handoff(0)} {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.joinable = true
				tt := terms(30*time.Second, kind)
				l := p.lock(w.request("a", tt))
				next := p.begin(context.Background(), w.request("a", tt), false) // it listens
				time.Sleep(time.Second)
				start := w.now()
				c.spoil(w, p)
				time.Sleep(10 * ms)
				switch c.reason {
				case "-":
					require.Empty(t, w.sent("renew"))
					require.NoError(t, l.unlock())
				case "":
					require.Len(t, w.sent("renew"), 1, name)
					require.Equal(t, Held, l.state())
					require.Greater(t, l.remaining(), 28*time.Second)
					require.NoError(t, l.unlock())
				default:
					require.Len(t, w.sent("renew"), 1, name)
					require.Equal(t, c.reason, l.reason(), name)
					require.LessOrEqual(t, l.endedAt(), start+way+2*way)
				}
				a := <-next
				require.NoError(t, a.err)
				require.NoError(t, a.unlock())
			})
		}
	}
}

func TestOwnMessagesCauseNoRenewal(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		w.joinable = true
		r := w.request("a", terms(30*time.Second))
		var waiters []chan answer
		for range 20 {
			waiters = append(waiters, p.begin(context.Background(), r, false))
		}
		for _, c := range waiters {
			a := <-c
			require.NoError(t, a.err)
			time.Sleep(20 * ms)
			require.NoError(t, a.unlock())
		}
		require.Empty(t, w.sent("renew"))
		require.Len(t, w.sent("take"), 20)
	})
}

func TestAMessageDuringARenewalIsAskedAboutAgain(t *testing.T) {
	// The renewal under way is executed before the lock is removed.
	for name, first := range map[string]func(w *world, p *proc){
		"regular renewal": func(w *world, _ *proc) {
			w.eventually(func() bool { return len(w.sent("renew")) == 1 }, "a renewal")
		},
		"renewal after another message": func(_ *world, p *proc) { p.Suspect(ID{"fake", "a"}) },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", terms(30*time.Second)))
				w.plan(only("renew", func(_ cmd, p *plan) { p.after = 50 * ms }))
				first(w, p)
				time.Sleep(10 * ms)
				w.force("a")
				p.Suspect(ID{"fake", "a"})
				time.Sleep(200 * ms)
				require.Equal(t, fault.Forced, l.reason())
			})
		})
	}
}

func TestAMessageDuringTheRenewalThatFindsTheLockGoneTellsTheReason(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(30*time.Second)))
		w.plan(only("renew", func(_ cmd, p *plan) { p.before = 50 * ms }))
		w.eventually(func() bool { return len(w.sent("renew")) == 1 }, "a renewal")
		time.Sleep(10 * ms)
		w.force("a")
		p.Suspect(ID{"fake", "a"})
		time.Sleep(50 * ms)
		require.Equal(t, fault.Forced, l.reason())
	})
}

func TestADoubtAboutAFixedLeaseOutlivesAFailure(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(30*time.Second, fixed)))
		w.plan(only("renew", failing(notExecuted, true)))
		w.remove("a")
		p.Suspect(ID{"fake", "a"})
		time.Sleep(100 * ms)
		w.plan(nil)
		time.Sleep(2 * time.Second)
		require.Equal(t, fault.Forced, l.reason(), "state %v after %d tries", l.state(), len(w.sent("renew")))
	})
}

func TestJoinOfALostHoldEndsTheContext(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(900*ms)))
		w.remove("a")
		time.Sleep(time.Second)
		late := p.join(context.Background(), l.Hold)
		require.ErrorIs(t, context.Cause(late.ctx), fault.ErrLost)
		require.ErrorIs(t, late.unlock(), fault.ErrLost)
	})
}

func TestAHoldTellsWhatItIs(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(time.Minute, fencing))
		l := p.lock(r)
		require.Equal(t, w.holder("a"), l.Owner())
		require.Equal(t, "process 1:1", l.Owner())
		require.Same(t, r, l.Request())
		require.Equal(t, uint64(1), l.Token())
		require.Equal(t, 1, l.Holds())
		require.Equal(t, Stats{Held: 1}, p.Stats())
		time.Sleep(time.Second)
		require.Equal(t, time.Second, l.Age())
		require.NoError(t, l.unlock())
		require.Zero(t, l.Holds())
	})
}
