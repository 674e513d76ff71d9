package lease

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// A run is what n waiters of one process saw, in order, each holding for section.
type run struct {
	owners []string
	tokens []uint64
	hands  []bool
	at     []time.Duration
}

func (p *proc) run(n int, r *Request, section time.Duration) (all run) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	first := p.lock(r)
	note := func(l *held) {
		mu.Lock()
		defer mu.Unlock()
		all.owners = append(all.owners, l.Owner())
		all.tokens = append(all.tokens, l.Token())
		all.hands = append(all.hands, l.r.Handoff)
		all.at = append(all.at, p.w.now())
	}
	note(first)
	for range n - 1 {
		wg.Go(func() {
			l, err := p.acquire(context.Background(), r, false)
			require.NoError(p.w, err)
			note(l)
			if section > 0 {
				time.Sleep(section)
			}
			require.NoError(p.w, l.unlock())
		})
	}
	synctest.Wait()
	require.NoError(p.w, first.unlock())
	wg.Wait()
	return all
}

// longest is the most holds in a row that had one owner.
func (r *run) longest() (most int) {
	n := 0
	for i := range r.owners {
		if i > 0 && r.owners[i] != r.owners[i-1] {
			n = 0
		}
		n++
		most = max(most, n)
	}
	return most
}

func TestHandoffsAreBoundedByCount(t *testing.T) {
	for _, n := range []int{0, 1, 3, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				all := p.run(100, w.request("a", terms(30*time.Second, handoff(n))), 0)
				require.Equal(t, n+1, all.longest())
				require.Len(t, owners(w.sent("take")), (100+n)/(n+1))
				for i, h := range all.hands {
					require.Equal(t, i > 0 && all.owners[i] == all.owners[i-1], h)
				}
			})
		})
	}
}

func TestHandoffsAreBoundedByTime(t *testing.T) {
	for section, most := range map[time.Duration]int{2 * ms: 3, 4999 * time.Microsecond: 2, 5 * ms: 1, 50 * ms: 1} {
		t.Run(section.String(), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				r := w.request("a", terms(30*time.Second, handoff(64)))
				first := p.lock(r)
				next := make([]chan answer, 20)
				for i := range next {
					next[i] = p.begin(context.Background(), r, false)
				}
				run := 1
				for l, i := first, 0; ; i++ {
					time.Sleep(section)
					require.NoError(t, l.unlock())
					if i == len(next) {
						break
					}
					a := <-next[i]
					require.NoError(t, a.err)
					if a.r.Handoff {
						run++
					} else {
						require.LessOrEqual(t, run, most)
						if i < 10 && section < 5*ms {
							require.Equal(t, most, run)
						}
						run = 1
					}
					l = a.held
				}
			})
		})
	}
}

func TestNotEveryTenureIsHandedOver(t *testing.T) {
	plain := terms(30*time.Second, handoff(9))
	with := func(f func(*Terms)) Terms { x := plain; f(&x); return x }
	for name, c := range map[string]struct {
		mine, theirs Terms
		spoil        func(w *world, l *held)
		hands        bool
	}{
		"equal terms":    {plain, plain, nil, true},
		"equal variants": {with(func(t *Terms) { t.Variant = 1 }), with(func(t *Terms) { t.Variant = 1 }), nil, true},
		"other variant":  {with(func(t *Terms) { t.Variant = 1 }), with(func(t *Terms) { t.Variant = 2 }), nil, false},
		"other lease":    {plain, with(func(t *Terms) { t.Lease++ }), nil, false},
		"other grace":    {plain, with(func(t *Terms) { t.Grace++ }), nil, false},
		"other fencing":  {plain, with(fencing), nil, false},
		"fixed":          {with(fixed), with(fixed), nil, false},
		"minimum":        {with(minHold(1)), with(minHold(1)), nil, false},
		"off":            {with(handoff(0)), with(handoff(0)), nil, false},
		"suspect":        {plain, plain, func(_ *world, l *held) { l.keeper.Suspect(ID{"fake", "a"}) }, false},
		"less than half lease": {with(func(t *Terms) { t.Lease = 12 * ms }), with(func(t *Terms) { t.Lease = 12 * ms }), func(w *world, _ *held) {
			w.plan(only("renew", func(_ cmd, p *plan) { p.before = 9 * ms }))
			time.Sleep(4 * ms)
		}, false},
		"failing": {with(func(t *Terms) { t.Lease = 16 * ms }), with(func(t *Terms) { t.Lease = 16 * ms }), func(w *world, _ *held) {
			w.plan(only("renew", failing(notExecuted, true)))
			w.eventually(func() bool { return len(w.sent("renew")) > 0 }, "a renewal")
			time.Sleep(2 * way)
			synctest.Wait()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", c.mine))
				next := p.begin(context.Background(), w.request("a", c.theirs), false)
				if c.spoil != nil {
					c.spoil(w, l)
				}
				require.NoError(t, l.unlock())
				a := <-next
				require.NoError(t, a.err)
				require.Equal(t, c.hands, a.r.Handoff)
				require.Equal(t, c.hands, a.Owner() == l.Owner())
				require.NoError(t, a.unlock())
			})
		})
	}
}

func TestTokensRiseByOneAndOnlyWithinTheirBlock(t *testing.T) {
	for _, n := range []int{0, 3, 64} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				// The first block is asked for while nobody waits, so it is not handed over.
				all := p.run(50, w.request("a", terms(30*time.Second, handoff(n), fencing)), 0)
				require.False(t, all.hands[1])
				require.Equal(t, 1, w.sent("take")[0].n)
				for i := 1; i < len(all.tokens); i++ {
					if all.hands[i] {
						require.Equal(t, all.tokens[i-1]+1, all.tokens[i])
					} else {
						require.Greater(t, all.tokens[i], all.tokens[i-1])
					}
				}
				for _, c := range w.sent("take") {
					require.LessOrEqual(t, c.n, n+1)
				}
				require.LessOrEqual(t, all.longest(), n+1)
				if n > 0 {
					require.Greater(t, all.longest(), 1)
				}
			})
		})
	}
}

func TestAHoldThatWasHandedOverCannotActForItsSuccessor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(900*ms, handoff(9)))
		old := p.lock(r)
		next := p.begin(context.Background(), r, false)
		time.Sleep(ms)
		require.NoError(t, old.unlock())
		a := <-next
		require.True(t, a.r.Handoff)
		require.Equal(t, old.Owner(), a.Owner())
		require.ErrorIs(t, context.Cause(old.ctx), fault.ErrNotHeld)

		require.Equal(t, Released, old.state())
		require.Zero(t, old.remaining())
		require.Zero(t, old.Holds())
		require.Equal(t, fault.ErrNotHeld, old.unlock())
		require.Equal(t, fault.ErrNotHeld, old.Extend(context.Background(), &old.m, time.Second))
		_, err := old.Enter(context.Background(), 0)
		require.ErrorIs(t, err, ErrStranger)
		require.Empty(t, w.sent("release"))
		require.Empty(t, w.sent("renew"))
		require.Empty(t, w.sent("count"))
		require.NoError(t, a.ctx.Err())

		time.Sleep(3 * time.Second)
		require.Equal(t, Held, a.state())
		w.remove("a")
		time.Sleep(time.Second)
		require.Equal(t, Lost, a.state())
		require.Equal(t, Released, old.state())
		require.Len(t, told(p, &p.lost), 1)
	})
}

func TestTheOldContextEndsBeforeTheSuccessorHasTheLock(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Terms)
		hands  bool
	}{"handed over": {handoff(9), true}, "released": {handoff(0), false}} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				r := w.request("a", terms(30*time.Second, c.change))
				res, err := p.Acquire(context.Background(), r, false)
				require.NoError(t, err)
				next := p.begin(context.Background(), r, false)
				var m Member
				var ended time.Duration
				res.Hold.Join(context.Background(), &m, func(error) {
					time.Sleep(2 * ms) // contexts may have much to tell
					_, ok := got(next)
					require.False(w, ok)
					require.Equal(w, res.Hold.Owner(), w.holder("a"))
					ended = w.now()
				})
				_, err = res.Hold.Unlock(context.Background(), &m)
				require.NoError(t, err)
				a := <-next
				require.NoError(t, a.err)
				require.Equal(t, c.hands, a.r.Handoff)
				require.GreaterOrEqual(t, a.at, ended)
				require.NoError(t, a.ctx.Err())
				require.NoError(t, a.unlock())
			})
		})
	}
}

func TestARenewalOverAHandoffCountsForTheSuccessor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		// The first renewal is sent after 4 to 4.67 ms, and answered 1.25 ms later.
		const lease = 16 * ms
		p := w.proc()
		start := w.now()
		w.plan(only("renew", func(_ cmd, p *plan) { p.after = ms }))
		r := w.request("a", terms(lease, handoff(9)))
		old := p.lock(r)
		next := p.begin(context.Background(), r, false)
		w.until(start + 4800*time.Microsecond)
		require.Len(t, w.sent("renew"), 1)
		require.NoError(t, old.unlock())
		a := <-next
		require.True(t, a.r.Handoff)
		require.Equal(t, limit(start, lease)-w.now(), a.remaining())
		w.until(start + 6*ms)
		require.Equal(t, limit(w.sent("renew")[0].at, lease)-w.now(), a.remaining())
		require.Zero(t, old.remaining())
		require.NoError(t, a.unlock())
	})
}

func TestALossDuringAHandoffIsTheSuccessors(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const lease = 16 * ms
		p := w.proc()
		start := w.now()
		w.plan(only("renew", func(_ cmd, p *plan) { p.after = ms }))
		r := w.request("a", terms(lease, handoff(9)))
		old := p.lock(r)
		next := p.begin(context.Background(), r, false)
		w.occupy("a", time.Second)
		w.until(start + 4800*time.Microsecond)
		require.NoError(t, old.unlock())
		a := <-next
		w.until(start + 20*ms)
		require.Equal(t, fault.Taken, a.reason())
		require.Equal(t, Released, old.state())
	})
}

// gaps are how long after each release of the process the next attempt was sent.
func (w *world) gaps() (all []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	released := time.Duration(-1)
	for _, c := range w.cmds {
		switch {
		case c.op == "release":
			released = c.at
		case c.op == "take" && released >= 0:
			all = append(all, c.at-released)
			released = -1
		}
	}
	return all
}

func TestAProcessThatIsAloneAsksAgainAtOnce(t *testing.T) {
	for name, listens := range map[string]bool{"nobody listens": false, "only this process does": true} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				if listens {
					w.occupy("a", 10*ms)
				}
				p.run(20, w.request("a", terms(30*time.Second)), 0)
				gaps := w.gaps()
				require.Len(t, gaps, 19)
				for _, gap := range gaps {
					require.Equal(t, 2*way, gap, "the answer to the release is all that it waits for")
				}
			})
		})
	}
}

// nobody hears what another process would.
type nobody struct{}

func (nobody) Notify(Signal) {}

func TestOthersGoFirstWhereTheyMayBeListening(t *testing.T) {
	for name, listens := range map[string]bool{"another process listens": true, "nobody counts": false} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				if w.unheard = !listens; listens {
					stop := w.request("a", terms(time.Second)).Store.Subscribe(nobody{})
					defer stop()
					time.Sleep(ms)
				}
				p := w.proc()
				p.run(20, w.request("a", terms(30*time.Second)), 0)
				for _, gap := range w.gaps() {
					require.GreaterOrEqual(t, gap, 4*way, "two round trips")
				}
			})
		})
	}
}

// Those that listen to a replica, or through a proxy, are not counted.
func TestAProcessThatSeemsAloneLetsOthersGoFirstNowAndThen(t *testing.T) {
	for _, succeeds := range []bool{false, true} {
		t.Run(fmt.Sprint("in one round trip ", succeeds), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.succeeds = succeeds
				p := w.proc()
				p.run(1000, w.request("a", terms(30*time.Second)), 0)
				polite := 0
				for _, gap := range w.gaps() {
					if gap >= 4*way {
						polite++
					}
				}
				took := w.now() - time.Second
				require.InDelta(t, float64(took/humbleEvery), polite, 1)
				require.Equal(t, succeeds, len(w.sent("succeed")) > 900)
			})
		})
	}
}

func TestALateAnswerToAReleaseDoesNotCutABackoffShort(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		l := p.lock(r)
		w.plan(func(c cmd, p *plan) {
			switch {
			case c.op == "release":
				p.after = 6 * ms // the head has asked by then
			case c.op == "take" && len(w.cmds) < 4:
				p.err = notExecuted()
			}
		})
		c := p.begin(context.Background(), r, false)
		synctest.Wait()
		released := w.now()
		require.NoError(t, l.unlock())
		a := <-c
		require.NoError(t, a.err)
		takes := w.sent("take")
		require.Len(t, takes, 3)
		require.GreaterOrEqual(t, takes[2].at-takes[1].at, 2*way+2*ms, "half of the shortest backoff")
		require.Less(t, takes[1].at, released+6*ms)
		require.NoError(t, a.unlock())
	})
}

func TestAReleaseThatIsNotAnsweredHoldsTheNextUpForAMoment(t *testing.T) {
	for name, executed := range map[string]bool{"executed": true, "not executed": false} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				r := w.request("a", terms(30*time.Second))
				l := p.lock(r)
				c := p.begin(context.Background(), r, false)
				synctest.Wait()
				copies := 0
				w.plan(only("release", func(_ cmd, p *plan) {
					p.hole = copies == 0
					p.skip = p.hole && !executed
					copies++
				}))
				released := w.now()
				go func() { require.ErrorIs(t, l.unlock(), fault.ErrUnknown) }()
				time.Sleep(20 * ms)
				require.Equal(t, released+answerWithin, w.sent("take")[1].at)
				a := <-c
				require.NoError(t, a.err)
				require.NoError(t, a.unlock())
			})
		})
	}
}

// A subscription that is not yet certain does not count: the one that heard is then
// another's.
func TestAProcessThatDoesNotHearYetIsNotTheOneThatHeard(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		stop := r.Store.Subscribe(nobody{})
		defer stop()
		time.Sleep(ms)
		w.occupy("a", 5*ms) // so that they have to ask again, and subscribe
		w.listen = time.Hour
		var all []chan answer
		for range 5 {
			all = append(all, p.begin(context.Background(), r, false))
		}
		for _, c := range all {
			a := <-c
			require.NoError(t, a.err)
			require.NoError(t, a.unlock())
		}
		for _, gap := range w.gaps() {
			require.GreaterOrEqual(t, gap, 4*way)
		}
		require.Len(t, w.gaps(), 4)
	})
}
