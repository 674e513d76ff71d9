package lease

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

const ms = time.Millisecond

// only changes the plan of one kind of command.
func only(op string, f func(c cmd, p *plan)) func(c cmd, p *plan) {
	return func(c cmd, p *plan) {
		if c.op == op {
			f(c, p)
		}
	}
}

func failing(err func() error, skip bool) func(c cmd, p *plan) {
	return func(_ cmd, p *plan) { p.err, p.skip = err(), skip }
}

func hole(_ cmd, p *plan) { p.hole, p.skip = true, true }

func TestAHoldEndsExactlyAtItsLocalDeadline(t *testing.T) {
	const lease = 900 * ms
	for name, trouble := range map[string]func(cmd, *plan){
		"black hole":                hole,
		"black hole after executed": func(_ cmd, p *plan) { p.hole = true },
		"not executed":              failing(notExecuted, true),
		"unknown":                   failing(unknown, true),
		"unknown, but executed":     failing(unknown, false),
		"fatal":                     failing(fatal, true),
		"reply after the deadline":  func(_ cmd, p *plan) { p.stubborn, p.after = true, time.Second },
		"reply at the deadline":     func(_ cmd, p *plan) { p.stubborn, p.after = true, 700*ms },
	} {
		for _, good := range []int{0, 1, 5} {
			t.Run(fmt.Sprintf("%s after %d renewals", name, good), func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					p := w.proc()
					sent := w.now()
					l := p.lock(w.request("a", terms(lease)))
					w.eventually(func() bool {
						r := w.sent("renew")
						if len(r) > 0 {
							sent = r[len(r)-1].at
						}
						return len(r) == good
					}, "good renewals")
					time.Sleep(time.Millisecond)
					w.plan(only("renew", trouble))
					end := limit(sent, lease)

					w.until(end - 1)
					synctest.Wait()
					require.NoError(t, l.ctx.Err())
					require.Equal(t, time.Duration(1), l.remaining())
					require.Contains(t, []State{Held, Unsure}, l.state())
					require.Greater(t, len(w.sent("renew")), good)
					require.Equal(t, 1, l.Holds())
					w.until(end)
					synctest.Wait()
					require.Equal(t, end, l.endedAt())
					require.Equal(t, fault.Expired, l.reason())
					require.ErrorIs(t, context.Cause(l.ctx), fault.ErrLost)
					require.Zero(t, l.remaining())
					require.Zero(t, l.Holds())
					require.Equal(t, Lost, l.state())
					require.Len(t, told(p, &p.lost), 1)

					time.Sleep(2 * time.Second) // late replies revive nothing
					require.Equal(t, Lost, l.state())
					require.ErrorIs(t, l.unlock(), fault.ErrLost)
					require.ErrorIs(t, l.unlock(), fault.ErrNotHeld)
					require.Equal(t, Released, l.state())
					require.Empty(t, w.sent("release"), "what is lost is not released")
				})
			})
		}
	}
}

func TestALossTellsTheFailureThatLedToIt(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(900*ms)))
		w.plan(only("renew", failing(notExecuted, true)))
		time.Sleep(time.Second)
		require.ErrorIs(t, context.Cause(l.ctx), errNetwork)
		var f *fault.Failure
		require.False(t, errors.As(context.Cause(l.ctx), &f), "callers see the store's own error")
	})
}

func TestALateReplyDoesNotStretchALease(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const lease = 900 * ms
		p := w.proc()
		l := p.lock(w.request("a", terms(lease)))
		w.plan(only("renew", func(_ cmd, p *plan) { p.after = 150 * ms }))
		w.eventually(func() bool { return len(w.sent("renew")) == 1 }, "a renewal")
		w.plan(only("renew", hole))
		sent := w.sent("renew")[0].at
		w.until(sent + 200*ms)
		require.Equal(t, limit(sent, lease)-w.now(), l.remaining(), "counted from when the renewal was sent")
		require.Equal(t, Held, l.state())
		time.Sleep(time.Second)
		require.Equal(t, limit(sent, lease), l.endedAt())
	})
}

func TestAGrantCountsFromTheSendOfTake(t *testing.T) {
	for name, minimum := range map[string]time.Duration{"lease": 0, "longer minimum": 3 * time.Second, "shorter minimum": 100 * ms} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				w.plan(func(c cmd, p *plan) {
					if p.after = 300 * ms; c.op == "renew" {
						hole(c, p)
					}
				})
				sent := w.now()
				l := p.lock(w.request("a", terms(900*ms, func(t *Terms) { t.MinHold = minimum })))
				end := limit(sent, max(900*ms, minimum))
				require.Equal(t, end-w.now(), l.remaining())
				require.Equal(t, max(900*ms, minimum), w.sent("take")[0].d)
				w.until(end)
				synctest.Wait()
				require.Equal(t, end, l.endedAt())
			})
		})
	}
}

func TestAGrantThatComesAfterItsLeaseIsUndone(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const lease = 900 * ms
		p := w.proc()
		w.plan(only("take", func(c cmd, p *plan) {
			if c.at < 1500*ms {
				p.stubborn, p.after = true, limit(0, lease)-p.before
			}
		}))
		l := p.lock(w.request("a", terms(lease)))
		takes := w.sent("take")
		require.Len(t, takes, 2)
		require.Equal(t, 2, l.r.Attempts)
		require.NotEqual(t, takes[0].owner, takes[1].owner)
		require.Equal(t, takes[1].owner, l.Owner())
		require.Equal(t, l.Owner(), w.holder("a"))
		require.Equal(t, limit(takes[1].at, lease)-w.now(), l.remaining())
		releases := w.sent("release")
		require.Equal(t, takes[0].owner, releases[0].owner)
		require.Equal(t, takes[0].at+limit(0, lease), releases[0].at, "at once")
		require.Len(t, told(p, &p.retried), 1)
		require.NoError(t, l.unlock())
	})
}

func TestAGrantThatComesRightBeforeItsEndIsReturned(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const lease = 900 * ms
		p := w.proc()
		w.plan(only("take", func(_ cmd, p *plan) { p.stubborn, p.after = true, limit(0, lease)-p.before-1 }))
		l := p.lock(w.request("a", terms(lease)))
		require.Equal(t, time.Duration(1), l.remaining())
		require.Len(t, w.sent("take"), 1)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, fault.Expired, l.reason())
	})
}

func TestASingleLockIsRenewedEveryThirdOfItsLease(t *testing.T) {
	for _, lease := range []time.Duration{20 * ms, 900 * ms, 30 * time.Second, time.Hour} {
		t.Run(lease.String(), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", terms(lease)))
				w.until(w.sent("take")[0].at + 10*lease)
				at := append([]time.Duration{w.sent("take")[0].at}, times(w.sent("renew"))...)
				for i := 1; i < len(at); i++ {
					if d := at[i] - at[i-1]; i == 1 {
						require.GreaterOrEqual(t, d, lease/4)
						require.LessOrEqual(t, d, lease/3)
					} else {
						require.Equal(t, lease/3, d)
					}
				}
				require.GreaterOrEqual(t, len(at), 30)
				require.Equal(t, Held, l.state())
				require.NoError(t, l.unlock())
			})
		})
	}
}

// lockAll takes all those locks at once.
func (p *proc) lockAll(requests []*Request) []*held {
	all := make([]*held, len(requests))
	var wg sync.WaitGroup
	for i, r := range requests {
		wg.Go(func() { all[i], _ = p.acquire(context.Background(), r, false) })
	}
	wg.Wait()
	require.NotContains(p.w, all, (*held)(nil))
	return all
}

func (p *proc) unlockAll(all []*held) {
	var wg sync.WaitGroup
	for _, l := range all {
		wg.Go(func() { _ = l.unlock() })
	}
	wg.Wait()
}

func (w *world) requests(n int, t Terms) (all []*Request) {
	for _, key := range keys(n) {
		all = append(all, w.request(key, t))
	}
	return all
}

func TestManyLocksAreRenewedInFewSpreadBatches(t *testing.T) {
	for _, n := range []int{2, 100, 101, 250, 1000, 2500} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				const lease = 30 * time.Second
				const period = lease / 3
				p := w.proc()
				all := p.lockAll(w.requests(n, terms(lease)))
				start := w.now()
				last := map[string]time.Duration{}
				w.until(start + 14*period)
				renews := w.sent("renew")
				together := min((n+1199)/1200, maxTogether)
				for i, c := range renews {
					require.LessOrEqual(t, c.n, together*100)
					if i > 0 {
						require.Greater(t, c.at, renews[i-1].at, "two renewals at once")
					}
					for _, l := range c.locks {
						before, ok := last[l.Key]
						if !ok {
							before = start
						}
						require.Less(t, c.at-before, 2*period, l.Key)
						last[l.Key] = c.at
					}
				}
				require.Len(t, last, n)
				batches, trips := 0, 0
				for _, c := range renews {
					if c.at >= start+2*period && c.at < start+12*period {
						batches += (c.n + 99) / 100
						trips++
					}
				}
				require.LessOrEqual(t, batches, 10*(n+99)/100, "batches in ten periods")
				require.LessOrEqual(t, trips, 10*(n+99)/100/together+10, "round trips in ten periods")
				for _, l := range all {
					require.Equal(t, Held, l.state())
				}
				p.unlockAll(all)
				require.Empty(t, told(p, &p.lost))
			})
		})
	}
}

// goroutines is their number. While the garbage collector moves dead ones from
// list to list, runtime counts them too.
func goroutines() int {
	n := runtime.NumGoroutine()
	for i := 0; i < 10_000 && n > 100; i++ {
		runtime.Gosched()
		n = min(n, runtime.NumGoroutine())
	}
	if n > 100 { // the collector may be held up in the middle of that
		runtime.GC()
		n = min(n, runtime.NumGoroutine())
	}
	return n
}

func TestTenThousandLocksNeedNoGoroutineEach(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const n, lease = 10_000, 30 * time.Second
		p := w.proc()
		before := goroutines()
		all := p.lockAll(w.requests(n, terms(lease)))
		synctest.Wait()
		w.forget()
		start := w.now()
		most := 0
		for w.now() < start+5*lease/3 {
			time.Sleep(97 * ms)
			synctest.Wait()
			most = max(most, goroutines())
		}
		require.LessOrEqual(t, most-before, maxSenders+8)
		require.Equal(t, Stats{Held: n}, Stats{Held: p.Stats().Held})
		batches := 0
		var at []time.Duration // of each batch
		for _, c := range w.sent("renew") {
			batches += (c.n + 99) / 100
			at = append(at, slices.Repeat([]time.Duration{c.at}, (c.n+99)/100)...)
		}
		require.LessOrEqual(t, batches, 5*n/100+n/100/2)
		require.LessOrEqual(t, len(w.sent("renew")), batches/maxTogether+10, "round trips")
		// No burst: at no time more than a fifth of a period's batches within a fiftieth of it.
		for i := range at {
			require.True(t, i+20 >= len(at) || at[i+20]-at[i] > lease/3/50, "20 batches within %v", lease/3/50)
		}
		p.Keeper.mu.Lock()
		require.Len(t, p.heap, n)
		p.Keeper.mu.Unlock()
		p.unlockAll(all)
		require.Empty(t, told(p, &p.lost))
	})
}

func TestManyLocksSurviveAHiccup(t *testing.T) {
	for name, trouble := range map[string]func(cmd, *plan){"errors": failing(notExecuted, true), "black hole": hole} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				const n, lease = 1000, 30 * time.Second
				p := w.proc()
				all := p.lockAll(w.requests(n, terms(lease)))
				start := w.now()
				w.until(start + 8*time.Second)
				w.forget()
				w.plan(only("renew", trouble))
				w.until(start + 12*time.Second)
				tries := len(w.sent("renew"))
				w.plan(nil)
				w.until(start + 2*lease)
				w.forget()
				time.Sleep(10 * lease / 3)
				require.Empty(t, told(p, &p.lost))
				require.Equal(t, n, p.Stats().Held)
				// A batch is tried about every 190 ms, and they need not fill up.
				require.LessOrEqual(t, tries, 3*n/100*25, "renewals in 4 s of trouble")
				require.LessOrEqual(t, len(w.sent("renew")), 10*n/100+n/100)
				p.unlockAll(all)
			})
		})
	}
}

func TestAFailedRenewalIsRetriedQuickly(t *testing.T) {
	for name, trouble := range map[string]func(cmd, *plan){"errors": failing(unknown, true), "black hole": hole} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				const lease = 900 * ms
				p := w.proc()
				l := p.lock(w.request("a", terms(lease)))
				w.plan(only("renew", trouble))
				w.eventually(func() bool { return len(w.sent("renew")) == 1 }, "a renewal")
				start := w.now()
				time.Sleep(240 * ms)
				synctest.Wait()
				require.Equal(t, Unsure, l.state())
				require.NoError(t, l.ctx.Err())
				w.until(start + 250*ms)
				w.plan(nil)
				w.until(start + 600*ms)
				synctest.Wait()
				require.Equal(t, Held, l.state())
				time.Sleep(5 * lease)
				require.Equal(t, Held, l.state())
				require.NoError(t, l.ctx.Err())
				require.NoError(t, l.unlock())
			})
		})
	}
}

func TestARenewalIsTriedSeveralTimesInTheRestOfTheLease(t *testing.T) {
	for name, c := range map[string]struct {
		trouble func(cmd, *plan)
		tries   int
	}{"errors": {failing(unknown, true), 6}, "black hole": {hole, 5}} {
		for _, lease := range []time.Duration{200 * ms, 900 * ms, 30 * time.Second} {
			t.Run(name+" "+lease.String(), func(t *testing.T) {
				in(t, func(t *testing.T, w *world) {
					p := w.proc()
					l := p.lock(w.request("a", terms(lease)))
					w.plan(only("renew", c.trouble))
					time.Sleep(lease)
					require.Equal(t, Lost, l.state())
					require.GreaterOrEqual(t, len(w.sent("renew")), c.tries)
					require.LessOrEqual(t, len(w.sent("renew")), 200)
				})
			})
		}
	}
}

func TestALockThatIsNotOursAnyMoreIsLostAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(w *world)
		reason fault.Reason
	}{
		"taken":   {func(w *world) { w.occupy("a", 3*time.Second) }, fault.Taken},
		"expired": {func(w *world) { w.remove("a") }, fault.Expired},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", terms(900*ms)))
				c.spoil(w)
				w.eventually(func() bool { return l.ctx.Err() != nil }, "the loss")
				require.Equal(t, w.sent("renew")[0].at+2*way, l.endedAt())
				require.Equal(t, c.reason, l.reason())
				require.ErrorIs(t, l.unlock(), fault.ErrLost)
				time.Sleep(5 * time.Second)
				require.Len(t, w.sent("renew"), 1)
				require.Equal(t, c.reason, told(p, &p.lost)[0].Reason)
			})
		})
	}
}

func TestOneBadKeyCostsItsNeighboursNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const lease = 9 * time.Second
		p := w.proc()
		all := p.lockAll(w.requests(100, terms(lease)))
		start := w.now()
		w.plan(only("renew", func(_ cmd, p *plan) {
			p.bad = func(r Renewal) error {
				if r.Key == "lock 00042" {
					return fatal()
				}
				return nil
			}
		}))
		w.until(start + 3*lease)
		for i, l := range all {
			if i == 42 {
				require.Equal(t, fault.Expired, l.reason())
				require.ErrorIs(t, context.Cause(l.ctx), fault.ErrWrongType)
				require.Greater(t, l.endedAt(), start+lease*9/10)
				continue
			}
			require.Equal(t, Held, l.state())
			require.Greater(t, l.remaining(), lease/3)
		}
		big := slices.DeleteFunc(w.sent("renew"), func(c cmd) bool { return c.n < 50 })
		require.LessOrEqual(t, len(big), 10)
		p.unlockAll(all)
	})
}

// Locks of one kind share a renewer, whatever their leases are.
func TestAShortLeaseIsNotHeldUpByLongOnes(t *testing.T) {
	for name, c := range map[string]struct{ long, wait time.Duration }{
		"a long one was renewed just before": {30 * time.Second, 8740 * ms},
		"a long one waits for its batch":     {30 * time.Second, 7400 * ms},
		"somewhat longer":                    {3 * time.Second, 700 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				long := p.lockAll([]*Request{w.request("long 1", terms(c.long)), w.request("long 2", terms(c.long))})
				time.Sleep(c.wait)
				short := p.lock(w.request("short", terms(900*ms)))
				for range 100 {
					time.Sleep(c.long / 100)
					require.NoError(t, context.Cause(short.ctx), "lost %v after it was granted", w.now()-c.wait-time.Second)
				}
				require.NoError(t, short.unlock())
				p.unlockAll(long)
			})
		})
	}
}

func TestARenewalInFlightDoesNotOutliveTheUnlock(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(900*ms)))
		w.plan(only("renew", func(_ cmd, p *plan) { p.after = 150 * ms }))
		w.eventually(func() bool { return len(w.sent("renew")) == 1 }, "a renewal")
		time.Sleep(ms)
		require.NoError(t, l.unlock())
		time.Sleep(5 * time.Second)
		require.Len(t, w.sent("renew"), 1)
		require.Equal(t, Released, l.state())
		require.Empty(t, told(p, &p.lost))
		require.ErrorIs(t, context.Cause(l.ctx), fault.ErrNotHeld)
	})
}

func TestNothingIsRenewedAfterItsEnd(t *testing.T) {
	const lease = 900 * ms
	for name, end := range map[string]func(w *world, p *proc, l *held){
		"released": func(w *world, _ *proc, l *held) { require.NoError(w, l.unlock()) },
		"lost":     func(w *world, _ *proc, l *held) { w.remove("a"); time.Sleep(lease / 2) },
		"closed": func(w *world, p *proc, _ *held) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			require.ErrorIs(w, p.Close(ctx), context.Canceled)
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", terms(lease)))
				time.Sleep(3 * lease)
				end(w, p, l)
				require.Error(t, l.ctx.Err())
				w.forget()
				time.Sleep(10 * lease)
				require.Empty(t, w.sent("renew"))
				require.Empty(t, w.holder("a"))
			})
		})
	}
}

func TestALateUnlockFindsTheLeaseOver(t *testing.T) {
	// The alarm stands still while the machine sleeps: here it never fires.
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(900*ms)))
		other := p.lock(w.request("b", terms(900*ms, fixed)))
		p.Keeper.mu.Lock()
		p.alarm.Stop()
		p.Keeper.mu.Unlock()
		time.Sleep(time.Second)
		require.NoError(t, l.ctx.Err())
		require.Equal(t, Lost, l.state())
		require.Zero(t, l.remaining())
		require.ErrorIs(t, l.unlock(), fault.ErrLost)
		require.Equal(t, fault.Expired, l.reason())
		require.ErrorIs(t, other.Extend(context.Background(), &other.m, time.Second), fault.ErrLost)
		require.Equal(t, fault.Expired, other.reason())
		require.Len(t, told(p, &p.lost), 2)
		require.Empty(t, w.sent("release"))
		p.Keeper.mu.Lock()
		p.alarmAt = 0
		p.Keeper.mu.Unlock()
	})
}

func TestLocksReleasedWhileTheyWaitForTheirBatchAreNotRenewed(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		const lease = 30 * time.Second
		p := w.proc()
		all := p.lockAll(w.requests(50, terms(lease)))
		start := w.now()
		w.eventually(func() bool { // some are due
			p.Keeper.mu.Lock()
			defer p.Keeper.mu.Unlock()
			for _, l := range p.lanes {
				return l.waiting > 5
			}
			return false
		}, "locks that wait for their batch")
		require.Empty(t, w.sent("renew"))
		p.unlockAll(all[:49])
		w.until(start + 4*lease)
		for _, c := range w.sent("renew") {
			require.Equal(t, []Renewal{{"lock 00049", all[49].Owner(), lease}}, c.locks)
		}
		require.GreaterOrEqual(t, len(w.sent("renew")), 11)
		require.Equal(t, Held, all[49].state())
		require.NoError(t, all[49].unlock())
	})
}

func TestRenewedTellsOfEveryBatch(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		all := p.lockAll(w.requests(3, terms(9*time.Second)))
		w.remove("lock 00001")
		time.Sleep(3500 * ms)
		total := renewedAt{}
		for _, r := range told(p, &p.renewed) {
			require.NoError(t, r.err)
			total.locks += r.locks
			total.renewed += r.renewed
		}
		require.Equal(t, renewedAt{locks: 3, renewed: 2}, total)
		w.plan(only("renew", failing(notExecuted, true)))
		time.Sleep(3 * time.Second)
		r := told(p, &p.renewed)
		require.ErrorIs(t, r[len(r)-1].err, errNetwork)
		w.plan(nil)
		p.unlockAll(all)
	})
}
