package lease

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// of are the commands of one owner.
func of(cmds []cmd, owner string) []cmd {
	return slices.DeleteFunc(cmds, func(c cmd) bool { return c.owner != owner })
}

func TestAGrantWhoseReplyWasLostIsFoundBySameOwner(t *testing.T) {
	for name, trouble := range map[string]func(cmd, *plan){
		"error":      failing(unknown, false),
		"black hole": func(_ cmd, p *plan) { p.hole = true },
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc(func(c *Config) { c.Timeout = 200 * ms })
				r := w.request("a", terms(30*time.Second, fencing))
				w.plan(only("take", func(c cmd, p *plan) {
					if c.at < 1001*ms {
						trouble(c, p)
					}
				}))
				l := p.lock(r)
				takes := w.sent("take")
				require.Len(t, takes, 2)
				require.Equal(t, []string{l.Owner()}, owners(takes))
				require.Equal(t, limit(takes[1].at, 30*time.Second)-w.now(), l.remaining())
				require.Equal(t, uint64(1), l.Token())
				require.Equal(t, 1, p.Stats().Held)
				require.Zero(t, p.Stats().Condemned)
				_, n, _ := w.look("a")
				require.Equal(t, 1, n)

				// A copy of the first attempt may still come: after the release it is looked for.
				require.NoError(t, l.unlock())
				require.Equal(t, 1, p.Stats().Condemned)
				time.Sleep(3 * time.Minute)
				require.Greater(t, len(w.sent("release")), 5)
				require.Equal(t, []string{l.Owner()}, owners(w.sent("release")))
			})
		})
	}
}

func TestAGivenUpAttemptIsSweptAtOnceAndAgain(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		w.plan(only("take", failing(unknown, false)))
		ctx, cancel := context.WithTimeout(context.Background(), 100*ms)
		defer cancel()
		_, err := p.acquire(ctx, w.request("a", terms(time.Hour)), false)
		require.Error(t, err)
		end := w.now()
		time.Sleep(50 * ms) // an attempt may have been under way
		require.Equal(t, Stats{Condemned: 1}, p.Stats())
		require.Empty(t, w.holder("a"))
		require.Equal(t, "process 1:1", w.sent("release")[0].owner)
		require.LessOrEqual(t, w.sent("release")[0].at, end+2*way)

		time.Sleep(5 * time.Minute)
		at := times(w.sent("release"))
		require.Len(t, at, len(sweeps))
		for i := 1; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i]-at[i-1], sweeps[i])
			require.LessOrEqual(t, at[i]-at[i-1], sweeps[i]+2*ms)
		}
		require.Zero(t, p.Stats().Condemned)
	})
}

func TestALateCopyOfAGivenUpAttemptIsRemoved(t *testing.T) {
	for _, late := range []time.Duration{500 * ms, 10 * time.Second, 90 * time.Second, 120 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(only("take", func(_ cmd, p *plan) {
					p.err, p.skip, p.copies = unknown(), true, []time.Duration{late}
				}))
				r := w.request("a", terms(time.Hour))
				start := w.now()
				_, err := p.acquire(context.Background(), r, true)
				require.ErrorIs(t, err, fault.ErrUnavailable)
				w.plan(nil)
				w.until(start + late - 1)
				require.Empty(t, w.holder("a"))
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.Equal(t, "process 1:1", w.holder("a"))
				l := p.lock(r) // whoever waits gets it then
				require.Less(t, w.now(), start+122*time.Second)
				require.NoError(t, l.unlock())
			})
		})
	}
}

func TestALateCopyAfterTheReleaseIsRemoved(t *testing.T) {
	for _, minimum := range []time.Duration{0, 20 * time.Second} {
		t.Run(minimum.String(), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				r := w.request("a", terms(time.Hour, minHold(minimum)))
				w.plan(only("take", func(c cmd, p *plan) {
					if c.at < 1001*ms {
						p.err, p.skip, p.copies = unknown(), true, []time.Duration{30 * time.Second}
					}
				}))
				start := w.now()
				l := p.lock(r)
				granted := w.now()
				time.Sleep(time.Second)
				require.NoError(t, l.unlock())
				w.until(granted + minimum - 1)
				synctest.Wait()
				if minimum > 0 {
					require.Equal(t, l.Owner()+":released", w.holder("a"), "it stays taken for its minimum")
				}
				w.until(start + 30*time.Second)
				synctest.Wait()
				require.Equal(t, l.Owner(), w.holder("a"), "the late copy")
				w.until(start + 3*time.Minute)
				require.Empty(t, w.holder("a"))
			})
		})
	}
}

func TestALateCopyWhileTheLockIsHeldDoesNoHarm(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		w.plan(only("take", func(c cmd, p *plan) {
			if c.at < 1001*ms {
				p.err, p.skip, p.copies = unknown(), true, []time.Duration{time.Second}
			}
		}))
		l := p.lock(w.request("a", terms(900*ms)))
		time.Sleep(3 * time.Second)
		require.Equal(t, Held, l.state())
		require.NoError(t, l.unlock())
		require.Empty(t, w.holder("a"))
	})
}

func TestATaintedTenureIsSweptHoweverItEnds(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Terms)
		end    func(w *world, p *proc, l *held)
	}{
		"max hold": {maxHold(time.Second), func(w *world, _ *proc, l *held) { <-l.ctx.Done() }},
		"taken":    {handoff(0), func(w *world, _ *proc, l *held) { w.occupy("a", time.Second); <-l.ctx.Done() }},
		"handed over": {handoff(9), func(w *world, p *proc, l *held) {
			next := p.begin(context.Background(), l.Request(), false)
			require.NoError(w, l.unlock())
			a := <-next
			require.True(w, a.r.Handoff)
			require.NoError(w, a.unlock())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(only("take", func(c cmd, p *plan) {
					if c.at < 1001*ms {
						p.err, p.skip, p.copies = unknown(), true, []time.Duration{50 * time.Second}
					}
				}))
				l := p.lock(w.request("a", terms(30*time.Second, c.change)))
				c.end(w, p, l)
				synctest.Wait()
				require.Equal(t, 1, p.Stats().Condemned)
				time.Sleep(5 * time.Minute)
				require.Empty(t, w.holder("a"))
				require.NotEmpty(t, of(w.sent("release"), l.Owner()))
			})
		})
	}
}

func TestSweepsGoOnThroughTroubleButNotForEver(t *testing.T) {
	for name, c := range map[string]struct {
		trouble func() error
		most    int
	}{
		"not executed": {notExecuted, 700},
		"unknown":      {unknown, 700},
		"fatal":        {fatal, 10},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(func(_ cmd, p *plan) { p.err, p.skip = unknown(), true })
				_, err := p.acquire(context.Background(), w.request("a", terms(time.Hour)), true)
				require.Error(t, err)
				w.plan(func(_ cmd, p *plan) { p.err, p.skip = c.trouble(), true })
				time.Sleep(time.Hour)
				require.Zero(t, p.Stats().Condemned)
				require.LessOrEqual(t, len(w.sent("release")), c.most)
				at := times(w.sent("release"))
				for i := 2; i < len(at); i++ {
					pause := sweeps[1]
					if name != "fatal" { // soon again, and then ever later
						pause = min(4*ms<<min(i-1, 10), sweepAgain)
					}
					require.GreaterOrEqual(t, at[i]-at[i-1], pause)
				}
			})
		})
	}
}

func TestASweepThatFailsHoldsUpNoOther(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		w.plan(func(c cmd, p *plan) {
			if c.op == "take" || c.key == "bad" {
				p.err = unknown()
			}
		})
		_, err := p.acquire(context.Background(), w.request("bad", terms(time.Hour)), true)
		require.Error(t, err)
		time.Sleep(10 * ms)
		_, err = p.acquire(context.Background(), w.request("good", terms(time.Hour)), true)
		require.Error(t, err)
		time.Sleep(10 * ms)
		require.Empty(t, w.holder("good"), "swept at once")
		time.Sleep(5 * time.Second)
		require.GreaterOrEqual(t, len(of(w.sent("release"), "process 1:2")), 3)
	})
}

func TestManyCondemnedOwnersAreSweptFewAtATime(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		const n = 1000
		w.plan(apart(func(c cmd, p *plan) {
			if p.after = 5 * ms; c.op == "take" {
				p.err = unknown()
			}
		}))
		for _, key := range keys(n) {
			go func() { _, _ = p.acquire(context.Background(), w.request(key, terms(time.Hour)), true) }()
		}
		time.Sleep(5*ms + n*2*time.Microsecond + way)
		synctest.Wait()
		most := 0
		for range 200 {
			most = max(most, p.Stats().Running)
			time.Sleep(ms)
			synctest.Wait()
		}
		require.Equal(t, maxSweeps, most)
		require.Equal(t, n, p.Stats().Condemned)
		for _, key := range keys(n) {
			require.Empty(t, w.holder(key))
		}
	})
}

func TestAFreshOwnerIsAskedForAfterASuccess(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(time.Minute))
		for i := range 3 {
			l := p.lock(r)
			require.Equal(t, fmt.Sprintf("process 1:%d", i+1), l.Owner())
			require.NoError(t, l.unlock())
		}
	})
}

// A store that took the lock and could not keep it, for want of replicas, gives
// it back itself: that owner must not ask again.
func TestASpentOwnerIsNotAskedForAgain(t *testing.T) {
	for name, class := range map[string]fault.Class{"not executed": fault.NotExecuted, "unknown": fault.Unknown, "fatal": fault.Fatal} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(only("take", func(c cmd, p *plan) {
					if c.at < 1001*ms {
						p.err = &fault.Failure{Class: class, Spent: true, Err: errNetwork}
					}
				}))
				l, err := p.acquire(context.Background(), w.request("a", terms(time.Hour)), false)
				time.Sleep(10 * ms)
				require.NotEmpty(t, of(w.sent("release"), "process 1:1"))
				if class == fault.Fatal {
					require.Equal(t, errNetwork, err)
					require.Empty(t, w.holder("a"))
				} else {
					require.NoError(t, err)
					require.Equal(t, "process 1:2", l.Owner())
					time.Sleep(3 * time.Minute)
					require.Equal(t, Held, l.state())
					require.NoError(t, l.unlock())
				}
			})
		})
	}
}

// Whether an error that is final changed nothing is known only of other data.
func TestAFatalErrorIsSweptUnlessTheKeyHoldsOtherData(t *testing.T) {
	for name, c := range map[string]struct {
		err       error
		condemned int
	}{
		"other data": {fault.ErrWrongType, 0},
		"other":      {errNetwork, 1},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(only("take", failing(func() error { return &fault.Failure{Class: fault.Fatal, Err: c.err} }, true)))
				_, err := p.acquire(context.Background(), w.request("a", terms(time.Hour)), false)
				require.Equal(t, c.err, err)
				require.Equal(t, c.condemned, p.Stats().Condemned)
			})
		})
	}
}
