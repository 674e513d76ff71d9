package lease

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// A queuer is a store that knows who waits, and can make its owners those of another
// lock.
type queuer struct {
	*store
	other string // key of that lock
}

func (s *queuer) TakeOrWait(ctx context.Context, owner string, block, behind int) (Grant, error) {
	s.mu.Lock()
	s.cmds = append(s.cmds, cmd{op: "wait", key: s.key, owner: owner, n: behind, at: s.now()})
	s.mu.Unlock()
	return s.Take(ctx, owner, block)
}

func (s *queuer) Withdraw(ctx context.Context) error {
	_, err := do(ctx, s.server, cmd{op: "withdraw", key: s.key}, func(*plan) bool { return true })
	return err
}

// Convert moves the owner from one key to the other.
func (s *queuer) Convert(ctx context.Context, owner string) (Verdict, error) {
	return do(ctx, s.server, cmd{op: "convert", key: s.key, owner: owner}, func(*plan) Verdict {
		if s.verdict(s.other, owner) == Mine { // an earlier copy
			return Mine
		}
		v := s.verdict(s.key, owner)
		if v == Mine {
			delete(s.locks, s.key)
			s.locks[s.other] = &row{owner, 1, s.now() + s.terms.Lease}
			s.publish(s.key)
		}
		return v
	})
}

// shared asks for a lock that many may hold.
func (w *world) shared(key string, t Terms) *Request {
	r := &Request{ID: ID{"shared", key}, Terms: &t, Shared: true}
	r.Store = &queuer{store: &store{server: w.server, key: key, terms: r.Terms, kind: "shared"}}
	return r
}

// convertible asks for a lock whose holds can become ones of the shared lock to.
func (w *world) convertible(key, to string, t Terms) *Request {
	r := &Request{ID: ID{"fake", key}, Terms: &t}
	r.Store = &queuer{store: &store{server: w.server, key: key, terms: r.Terms}, other: to}
	return r
}

func TestAGrantOfASharedLockLetsAllInThatWait(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.shared("a", terms(3*time.Second))
		w.occupy("a", time.Second)
		var waiting []chan answer
		for i := range 1000 {
			waiting = append(waiting, p.begin(context.Background(), r, i == 500 /* it was refused */))
		}
		time.Sleep(1100 * ms)
		var all []*held
		var at []time.Duration
		for i, c := range waiting {
			a, ok := got(c)
			require.True(t, ok)
			if i == 500 {
				require.ErrorIs(t, a.err, fault.ErrNotAcquired)
				continue
			}
			require.NoError(t, a.err)
			all = append(all, a.held)
			at = append(at, a.at)
			require.Equal(t, all[0].Owner(), a.Owner())
			require.Equal(t, at[0], a.at, "at one moment")
		}
		require.Equal(t, 999, p.Stats().Held)
		require.LessOrEqual(t, len(w.sent("take")), 3)
		w.forget()
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, len(w.sent("renew")), 11)
		for i, l := range all {
			require.Equal(t, Held, l.state())
			require.Equal(t, 1, l.Holds())
			require.Empty(t, w.sent("release"), "%d have left", i)
			require.NoError(t, l.unlock())
		}
		require.Len(t, w.sent("release"), 1)
		require.Empty(t, w.sent("withdraw"))
	})
}

func TestWhoComesAfterASharedGrantAsksAnew(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.shared("a", terms(3*time.Second))
		first := p.lock(r)
		w.forget()
		late := p.begin(context.Background(), r, false) // the fake refuses it
		time.Sleep(10 * ms)
		require.NotEmpty(t, w.sent("take"))
		require.NotEqual(t, first.Owner(), w.sent("take")[0].owner)
		require.NoError(t, first.unlock())
		a := <-late
		require.NoError(t, a.err)
		require.NoError(t, a.unlock())
	})
}

func TestOnlyEqualTermsWithAWatchdogShare(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		plain, other, brief := w.shared("a", terms(3*time.Second)), w.shared("a", terms(4*time.Second)), w.shared("a", terms(3*time.Second, fixed))
		w.occupy("a", time.Second)
		var waiting []chan answer
		for _, r := range []*Request{plain, other, plain, brief, brief} {
			waiting = append(waiting, p.begin(context.Background(), r, false))
		}
		time.Sleep(1100 * ms)
		asked := w.sent("wait")
		require.Equal(t, 3, asked[len(asked)-2].n, "the head says how many will wait behind it")
		one, two := <-waiting[0], <-waiting[2]
		require.Equal(t, one.Owner(), two.Owner())
		_, ok := got(waiting[1])
		require.False(t, ok, "the fake refuses it")
		require.NoError(t, one.unlock())
		require.NoError(t, two.unlock())
		owners := map[string]bool{one.Owner(): true}
		for _, c := range []chan answer{waiting[1], waiting[3], waiting[4]} {
			a := <-c
			require.NoError(t, a.err)
			require.False(t, owners[a.Owner()])
			owners[a.Owner()] = true
			require.NoError(t, a.unlock())
		}
		require.Zero(t, w.sent("wait")[len(w.sent("wait"))-1].n)
	})
}

func TestASharedOwnerIsLostForAllAndEachEndsByItsOwnTerms(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.shared("a", terms(3*time.Second, func(t *Terms) { t.Grace = 2 * time.Second }))
		w.occupy("a", time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		leaves, stays, goes := p.begin(ctx, r, false), p.begin(context.Background(), r, false), p.begin(context.Background(), r, false)
		a, b, c := <-leaves, <-stays, <-goes
		inner, n, err := p.enter(b.held)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Empty(t, w.sent("count"), "nested holds are not told")
		require.Equal(t, 1, a.Holds())
		require.NoError(t, inner.unlock())
		require.NoError(t, c.unlock())

		cancel()
		w.eventually(func() bool { return a.state() == Lost }, "the abandoned one is lost")
		require.Equal(t, fault.Abandoned, a.reason())
		require.Equal(t, Held, b.state())
		require.ErrorIs(t, a.unlock(), fault.ErrLost)
		require.Equal(t, 1, p.Stats().Held)
		require.Equal(t, b.Owner(), w.holder("a"))

		w.plan(func(_ cmd, p *plan) { p.skip, p.err = true, unknown() })
		w.eventually(func() bool { return b.state() == Unsure }, "renewals fail")
		w.plan(nil)
		w.eventually(func() bool { return b.state() == Held }, "and work again")
		w.remove("a")
		w.eventually(func() bool { return b.state() == Lost }, "it is lost")
		require.Equal(t, fault.Expired, b.reason())
		_, _, err = p.enter(b.held)
		require.ErrorIs(t, err, ErrStranger)
	})
}

func TestMaxHoldOfASharedLockEndsAllThatEnteredTogether(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.shared("a", terms(3*time.Second, func(t *Terms) { t.MaxHold = 5 * time.Second }))
		w.occupy("a", time.Second)
		one, two := p.begin(context.Background(), r, false), p.begin(context.Background(), r, false)
		a, b := <-one, <-two
		<-a.ctx.Done()
		<-b.ctx.Done()
		require.Equal(t, fault.MaxHold, a.reason())
		require.Equal(t, fault.MaxHold, b.reason())
		require.Empty(t, w.sent("release"), "not before the end of the lease")
	})
}

// A shared tenure is not handed over: the head asks at the same time, and would have two
// holds, of which nobody knew one.
func TestASharedTenureIsNotHandedOver(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		plain, other := w.shared("a", terms(30*time.Second, handoff(64))), w.shared("a", terms(20*time.Second, fixed))
		w.occupy("a", 100*ms)
		ctx, cancel := context.WithCancel(context.Background())
		first := p.begin(context.Background(), plain, false)
		between := p.begin(ctx, other, false) // not let in with it, so the queue is the same for the next
		a := <-first
		require.NoError(t, a.err)
		next := p.begin(context.Background(), plain, false)
		cancel()
		require.Error(t, (<-between).err)
		w.plan(func(c cmd, p *plan) {
			if c.op == "take" {
				p.before = 2 * ms // it is under way when the other is unlocked, and granted
			}
		})
		time.Sleep(ms)
		require.NoError(t, a.unlock())
		b := <-next
		require.NoError(t, b.err)
		require.False(t, b.r.Handoff)
		require.NotEqual(t, a.Owner(), b.Owner())
		require.Equal(t, 1, p.Stats().Held)
		require.NoError(t, b.unlock())
		require.Zero(t, p.Stats().Held)
	})
}

// A caller that leaves at the moment of the grant takes nothing from the others.
func TestASharedGrantWhoseCallerHasLeftIsTheOthers(t *testing.T) {
	for _, others := range []int{0, 2} {
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				r := w.shared("a", terms(3*time.Second))
				ctx, cancel := context.WithCancel(context.Background())
				w.plan(func(c cmd, p *plan) {
					if c.op == "take" {
						p.after = 100 * ms
					}
				})
				head := p.begin(ctx, r, false)
				var rest []chan answer
				for range others {
					rest = append(rest, p.begin(context.Background(), r, false))
				}
				time.Sleep(50 * ms) // it is granted, and not known yet
				cancel()
				require.ErrorIs(t, (<-head).err, context.Canceled)
				time.Sleep(60 * ms)
				for _, c := range rest {
					a, ok := got(c)
					require.True(t, ok)
					require.NoError(t, a.err)
					require.NoError(t, a.unlock())
				}
				time.Sleep(time.Second)
				require.Len(t, w.sent("release"), 1)
				require.Empty(t, w.holder("a"))
			})
		})
	}
}

func TestWhoWaitsIsToldAndTheLastOneWhoLeavesSaysSo(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.shared("a", terms(3*time.Second))
		w.occupy("a", time.Hour)
		ctx, cancel := context.WithCancel(context.Background())
		one, two := p.begin(ctx, r, false), p.begin(context.Background(), r, false)
		once := p.begin(context.Background(), r, true)
		require.ErrorIs(t, (<-once).err, fault.ErrNotAcquired)
		time.Sleep(10 * ms)
		require.NotEmpty(t, w.sent("wait"))
		cancel()
		require.Error(t, (<-one).err)
		time.Sleep(10 * ms)
		require.Empty(t, w.sent("withdraw"), "another waits")
		w.force("a")
		a := <-two
		require.NoError(t, a.err)
		require.NoError(t, a.unlock())
		time.Sleep(10 * ms)
		require.Empty(t, w.sent("withdraw"), "the grant took it back")

		w.occupy("a", time.Hour)
		w.plan(func(c cmd, p *plan) {
			if c.op == "take" {
				p.after = 100 * ms
			}
		})
		given, stop := context.WithCancel(context.Background())
		three := p.begin(given, r, false)
		stop()
		require.Error(t, (<-three).err)
		time.Sleep(50 * ms)
		require.Empty(t, w.sent("withdraw"), "its attempt is still under way")
		time.Sleep(100 * ms)
		require.Len(t, w.sent("withdraw"), 1)
		w.remove("a")
	})
}

func TestCloseSaysThatNobodyWaitsAndReleasesASharedOwnerOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.shared("a", terms(3*time.Second))
		w.occupy("a", time.Second)
		one, two := p.begin(context.Background(), r, false), p.begin(context.Background(), r, false)
		<-one
		<-two
		w.occupy("b", time.Hour)
		waits := p.begin(context.Background(), w.shared("b", terms(3*time.Second)), false)
		time.Sleep(10 * ms)
		over, cancel := context.WithCancel(context.Background())
		cancel()
		require.Error(t, p.Close(over))
		require.ErrorIs(t, (<-waits).err, fault.ErrClosed)
		require.Len(t, w.sent("release"), 1)
		require.Len(t, w.sent("withdraw"), 1)
		w.remove("b")
	})
}

func TestNoHandoffWhileThoseWaitThatComeFirst(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second, handoff(64)))
		r.First = ID{"shared", "b"}
		first := p.lock(r)
		next := p.begin(context.Background(), r, false)
		third := p.begin(context.Background(), r, false)
		w.occupy("b", time.Hour)
		ctx, cancel := context.WithCancel(context.Background())
		reader := p.begin(ctx, w.shared("b", terms(30*time.Second)), false)
		require.NoError(t, first.unlock())
		a := <-next
		require.NoError(t, a.err)
		require.False(t, a.r.Handoff)
		cancel()
		require.Error(t, (<-reader).err)
		require.NoError(t, a.unlock())
		b := <-third
		require.True(t, b.r.Handoff)
		require.NoError(t, b.unlock())
		w.remove("b")
	})
}

func TestAHoldBecomesOneOfAnotherLock(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		from, to := w.convertible("a", "b", terms(3*time.Second)), w.shared("b", terms(3*time.Second))
		l := p.lock(from)
		next := p.begin(context.Background(), from, false)
		var ended time.Duration
		w.plan(func(c cmd, _ *plan) {
			if c.op == "convert" {
				ended = l.endedAt()
			}
		})
		sent := w.now()
		h, err := l.Convert(context.Background(), &l.m, to)
		require.NoError(t, err)
		require.Equal(t, sent, ended, "the context ends before the store is asked")
		require.Equal(t, l.Owner(), h.Owner())
		m := p.join(context.Background(), h)
		require.Equal(t, limit(sent, 3*time.Second)-w.now(), m.remaining(), "counted from when it was sent")
		require.ErrorIs(t, l.unlock(), fault.ErrNotHeld)
		_, err = l.Convert(context.Background(), &l.m, to)
		require.ErrorIs(t, err, fault.ErrNotHeld)
		a := <-next // the fake's lock is free
		require.NoError(t, a.err)
		require.False(t, a.r.Handoff)
		require.NoError(t, a.unlock())
		time.Sleep(10 * time.Second)
		require.Equal(t, Held, m.state(), "it is renewed")
		require.NoError(t, m.unlock())
		require.Empty(t, w.holder("b"))
	})
}

func TestAConversionIsTriedAgain(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		from, to := w.convertible("a", "b", terms(30*time.Second)), w.shared("b", terms(30*time.Second))
		l := p.lock(from)
		n := 0
		w.plan(func(c cmd, p *plan) {
			if n++; c.op == "convert" && n < 4 {
				p.err, p.skip = unknown(), n == 1 // not executed, then executed and not heard of
			}
		})
		h, err := l.Convert(context.Background(), &l.m, to)
		require.NoError(t, err)
		require.Len(t, w.sent("convert"), 4)
		m := p.join(context.Background(), h)
		require.NoError(t, m.unlock())
	})
}

// A late copy of the acquire and then one of the conversion, after everything was given
// back: the owner is looked for in both locks.
func TestLateCopiesOfAcquireAndConversionAreSwept(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		from, to := w.convertible("a", "b", terms(30*time.Second)), w.shared("b", terms(30*time.Second))
		taken, converted := false, false
		w.plan(func(c cmd, p *plan) {
			switch {
			case c.op == "take" && !taken:
				taken, p.skip, p.err, p.copies = true, true, unknown(), []time.Duration{5 * time.Second}
			case c.op == "convert" && !converted:
				converted, p.skip, p.err, p.copies = true, true, unknown(), []time.Duration{5500 * ms}
			}
		})
		l := p.lock(from)
		h, err := l.Convert(context.Background(), &l.m, to)
		require.NoError(t, err)
		m := p.join(context.Background(), h)
		require.NoError(t, m.unlock())
		time.Sleep(5 * time.Second)
		w.plan(nil)
		time.Sleep(3 * time.Minute)
		require.Empty(t, w.holder("a"))
		require.Empty(t, w.holder("b"))
		releases := map[string]bool{}
		for _, c := range w.sent("release") {
			releases[c.key] = true
		}
		require.True(t, releases["a"] && releases["b"])
		require.Greater(t, len(w.sent("release")), 12, "both are swept")
	})
}

func TestAConversionThatFailsLeavesNothing(t *testing.T) {
	for name, spoil := range map[string]func(p *plan){
		"not executed": func(p *plan) { p.skip, p.err = true, notExecuted() },
		"unheard":      func(p *plan) { p.hole = true },
		"late":         func(p *plan) { p.hole, p.skip, p.copies = true, true, []time.Duration{5 * time.Second} },
		"fatal":        func(p *plan) { p.skip, p.err = true, fatal() },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				from, to := w.convertible("a", "b", terms(30*time.Second)), w.shared("b", terms(30*time.Second))
				l := p.lock(from)
				w.plan(func(c cmd, p *plan) {
					if c.op == "convert" {
						spoil(p)
					}
				})
				began := w.now()
				_, err := l.Convert(context.Background(), &l.m, to)
				require.ErrorIs(t, err, fault.ErrUnavailable)
				require.LessOrEqual(t, w.now()-began, 3*time.Second+ms, "the session's timeout")
				require.ErrorIs(t, context.Cause(l.ctx), fault.ErrNotHeld)
				require.Zero(t, p.Stats().Held)
				time.Sleep(7 * time.Second) // sweeps at 0, 0.25, 1 and 4 seconds
				require.Empty(t, w.holder("a"))
				require.Empty(t, w.holder("b"))
			})
		})
	}
}

func TestAConversionOfAHoldThatIsLostOrNested(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		from, to := w.convertible("a", "b", terms(30*time.Second)), w.shared("b", terms(30*time.Second))
		l := p.lock(from)
		inner, _, err := p.enter(l)
		require.NoError(t, err)
		_, err = l.Convert(context.Background(), &l.m, to)
		require.ErrorIs(t, err, ErrNested)
		require.Equal(t, Held, l.state(), "nothing has changed")
		require.NoError(t, inner.unlock())
		w.remove("a")
		_, err = l.Convert(context.Background(), &l.m, to)
		require.ErrorIs(t, err, fault.ErrLost)
		require.Len(t, told(p, &p.lost), 1)
		require.ErrorIs(t, l.unlock(), fault.ErrNotHeld)

		w.occupy("a", time.Second)
		l = p.lock(from)
		w.remove("a")
		w.occupy("a", time.Hour)
		_, err = l.Convert(context.Background(), &l.m, to)
		var loss lossError
		require.ErrorAs(t, err, &loss)
		require.Equal(t, fault.Taken, loss.Reason)
		w.remove("a")
	})
}

// A conversion whose answer comes while Close ends everything is undone.
func TestCloseDuringAConversion(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		from, to := w.convertible("a", "b", terms(30*time.Second)), w.shared("b", terms(30*time.Second))
		l := p.lock(from)
		w.plan(func(c cmd, p *plan) {
			if c.op == "convert" {
				p.after = 500 * ms
			}
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := l.Convert(context.Background(), &l.m, to)
			require.ErrorIs(t, err, fault.ErrClosed)
		})
		time.Sleep(ms)
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Close(over)
		wg.Wait()
		require.Empty(t, w.holder("b"))
	})
}

func TestBackgroundIsWaitedForAndBounded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		done := false
		p.Background(func(ctx context.Context) {
			<-ctx.Done()
			done = true
		})
		began := w.now()
		require.NoError(t, p.Close(context.Background()))
		require.True(t, done)
		require.LessOrEqual(t, w.now()-began, 3*time.Second+lastWords)
		p.Background(func(context.Context) { t.Error("after Close") })
	})
}

// That nobody waits is said again if it was not heard, unless somebody waits anew.
func TestAWithdrawalThatFailsIsSentAgain(t *testing.T) {
	for _, anew := range []bool{false, true} {
		t.Run(fmt.Sprint(anew), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				r := w.shared("a", terms(3*time.Second))
				w.occupy("a", time.Hour)
				n := 0
				w.plan(func(c cmd, p *plan) {
					if c.op == "withdraw" {
						if n++; n < 4 {
							p.skip, p.err = true, unknown()
						}
					}
				})
				ctx, cancel := context.WithCancel(context.Background())
				waits := p.begin(ctx, r, false)
				time.Sleep(10 * ms)
				cancel()
				require.Error(t, (<-waits).err)
				again, stop := context.WithCancel(context.Background())
				defer stop()
				if anew {
					waits = p.begin(again, r, false)
				}
				time.Sleep(time.Second)
				if anew {
					require.Len(t, w.sent("withdraw"), 1)
					stop()
					require.Error(t, (<-waits).err)
					time.Sleep(time.Second)
				}
				require.Len(t, w.sent("withdraw"), 4)
				w.remove("a")
			})
		})
	}
}

// The others of a shared lock keep it alive, and in it the owner of a hold that was lost:
// it is taken out once its lease is over, since nobody will unlock it.
func TestALostSharedOwnerIsTakenOutOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.shared("a", terms(3*time.Second, func(t *Terms) { t.MaxHold = time.Second }))
		w.occupy("a", 500*ms)
		one, two := p.begin(context.Background(), r, false), p.begin(context.Background(), r, false)
		a, b := <-one, <-two
		<-a.ctx.Done()
		<-b.ctx.Done()
		w.forget()
		time.Sleep(5 * time.Minute)
		sent := w.sent("release")
		require.Len(t, sent, 1)
		require.Equal(t, a.Owner(), sent[0].owner)
		require.GreaterOrEqual(t, sent[0].at, a.tenure.deadline, "not before its time is over")
	})
}

func TestABoundTenureIsNotHandedOver(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second, handoff(64)))
		l := p.lock(r)
		next := p.begin(context.Background(), r, false)
		require.True(t, l.Bind())
		require.NoError(t, l.unlock())
		require.False(t, l.Bind(), "it is over")
		a := <-next
		require.NoError(t, a.err)
		require.False(t, a.r.Handoff)
		w.remove("a")
		time.Sleep(time.Minute)
		require.False(t, a.Bind(), "it is lost")
	})
}

// A nested hold that is about to be taken when its hold becomes another lock's finds that
// it is over, and counts nothing there.
func TestANestedHoldIsTakenDuringAConversion(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		from, to := w.convertible("a", "b", terms(30*time.Second)), w.shared("b", terms(30*time.Second))
		l := p.lock(from)
		w.plan(func(c cmd, p *plan) {
			if c.op == "count" {
				p.before = 10 * ms
			}
		})
		entered := make(chan error, 1)
		go func() {
			_, err := l.Enter(context.Background(), 0)
			entered <- err
		}()
		time.Sleep(ms)
		h, err := l.Convert(context.Background(), &l.m, to)
		require.NoError(t, err)
		require.ErrorIs(t, <-entered, ErrStranger)
		_, count, _ := w.look("b")
		require.Equal(t, 1, count)
		m := p.join(context.Background(), h)
		require.NoError(t, m.unlock())
	})
}
