package lease

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/fault"
)

func TestTheStoreCountsNestedLeasesExactly(t *testing.T) {
	for seed := range uint64(30) {
		in(t, func(t *testing.T, w *world) {
			random, luck := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
			p := w.proc()
			w.plan(only("count", func(_ cmd, p *plan) {
				p.before, p.after = time.Duration(luck.Int64N(int64(3*ms))), time.Duration(luck.Int64N(int64(3*ms)))
				switch luck.IntN(10) { // with the mutex of the server held
				case 0:
					p.err = unknown()
				case 1:
					p.err, p.skip = notExecuted(), true
				}
			}))
			l := p.lock(w.request("a", terms(30*time.Second)))
			live := []*held{l}
			for range 30 {
				var mu sync.Mutex
				var wg sync.WaitGroup
				var entered []*held
				for range random.IntN(4) {
					wg.Go(func() {
						x, _, err := p.enter(l)
						require.NoError(w, err)
						mu.Lock()
						defer mu.Unlock()
						entered = append(entered, x)
					})
				}
				random.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
				for range random.IntN(len(live)) { // never the last
					x := live[len(live)-1]
					live = live[:len(live)-1]
					wg.Go(func() {
						left, err := x.Unlock(context.Background(), &x.m)
						require.NoError(w, err)
						require.Positive(w, left)
					})
				}
				wg.Wait()
				live = append(live, entered...)
				owner, count, _ := w.look("a")
				require.Equal(t, l.Owner(), owner)
				require.Equal(t, len(live), count, "seed %d", seed)
				require.Equal(t, len(live), l.Holds())
			}
			w.plan(nil)
			var wg sync.WaitGroup
			zeros := make(chan int, len(live))
			for _, x := range live {
				wg.Go(func() {
					left, err := x.Unlock(context.Background(), &x.m)
					require.NoError(w, err)
					zeros <- left
				})
			}
			wg.Wait()
			n := 0
			for range live {
				if <-zeros == 0 {
					n++
				}
			}
			require.Equal(t, 1, n)
			require.Len(t, w.sent("release"), 1)
			require.Empty(t, w.holder("a"))
		})
	}
}

func TestALossEndsAllLeases(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(900*ms)))
		all := []*held{l}
		for range 5 {
			x, _, err := p.enter(l)
			require.NoError(t, err)
			all = append(all, x)
		}
		require.NoError(t, all[3].unlock())
		w.remove("a")
		time.Sleep(900 * ms)
		for i, x := range all {
			if i == 3 {
				require.ErrorIs(t, context.Cause(x.ctx), fault.ErrNotHeld)
				require.Equal(t, fault.ErrNotHeld, x.unlock())
				continue
			}
			require.Equal(t, fault.Expired, x.reason())
			require.Equal(t, l.endedAt(), x.endedAt())
			require.Equal(t, Lost, x.state())
			require.ErrorIs(t, x.unlock(), fault.ErrLost)
			require.Equal(t, Released, x.state())
		}
		require.Len(t, told(p, &p.lost), 1)
	})
}

func TestEnterIsForTheLivingOnly(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(w *world, l *held)
		err   error
	}{
		"released":         {func(w *world, l *held) { require.NoError(w, l.unlock()) }, ErrStranger},
		"lost":             {func(w *world, l *held) { w.remove("a"); <-l.ctx.Done() }, ErrStranger},
		"gone, unnoticed":  {func(w *world, _ *held) { w.remove("a") }, fault.ErrLost},
		"taken, unnoticed": {func(w *world, _ *held) { w.occupy("a", time.Second) }, fault.ErrLost},
		"released meanwhile": {func(w *world, l *held) {
			w.plan(only("count", func(_ cmd, p *plan) { p.after = 10 * ms }))
			time.AfterFunc(5*ms, func() { _ = l.unlock() })
		}, ErrStranger},
		"lost meanwhile": {func(w *world, l *held) {
			w.remove("a")
			w.plan(only("count", func(_ cmd, p *plan) { p.after = time.Second }))
		}, fault.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", terms(900*ms)))
				c.spoil(w, l)
				_, _, err := p.enter(l)
				require.ErrorIs(t, err, c.err)
				synctest.Wait()
				require.Error(t, l.ctx.Err())
				require.LessOrEqual(t, len(told(p, &p.lost)), 1)
				time.Sleep(time.Second)
			})
		})
	}
}

func TestEnterRidesOutTrouble(t *testing.T) {
	for name, trouble := range map[string]func(cmd, *plan){
		"not executed":          failing(notExecuted, true),
		"unknown":               failing(unknown, true),
		"unknown, but executed": failing(unknown, false),
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				l := p.lock(w.request("a", terms(30*time.Second)))
				start := w.now()
				w.plan(only("count", func(c cmd, p *plan) {
					if c.at < start+300*ms {
						trouble(c, p)
					}
				}))
				x, n, err := p.enter(l)
				require.NoError(t, err)
				require.Equal(t, 2, n)
				require.Less(t, w.now(), start+400*ms)
				_, count, _ := w.look("a")
				require.Equal(t, 2, count)
				require.NoError(t, x.unlock())
				_, count, _ = w.look("a")
				require.Equal(t, 1, count)
				require.NoError(t, l.unlock())
			})
		})
	}
}

func TestEnterEndsWithItsCallersPatience(t *testing.T) {
	for name, c := range map[string]struct {
		trouble func(cmd, *plan)
		ctx     time.Duration
		wait    time.Duration
		is      []error
	}{
		"ctx, black hole":        {func(_ cmd, p *plan) { p.hole = true }, 100 * ms, 0, []error{fault.ErrUnavailable, context.DeadlineExceeded}},
		"ctx, errors":            {failing(unknown, false), 100 * ms, 0, []error{fault.ErrUnavailable, context.DeadlineExceeded}},
		"ctx, slow":              {func(_ cmd, p *plan) { p.after = 200 * ms }, 100 * ms, 0, []error{fault.ErrUnavailable, context.DeadlineExceeded}},
		"wait, black hole":       {func(_ cmd, p *plan) { p.hole = true }, 0, 100 * ms, []error{fault.ErrUnavailable}},
		"wait, errors":           {failing(notExecuted, true), 0, 100 * ms, []error{fault.ErrUnavailable}},
		"fatal ends it at once":  {failing(fatal, true), 0, 0, []error{fault.ErrUnavailable, fault.ErrWrongType}},
		"ctx that ended already": {failing(fatal, true), -1, 0, []error{fault.ErrUnavailable, context.DeadlineExceeded}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc(func(c *Config) { c.Timeout = time.Second })
				l := p.lock(w.request("a", terms(30*time.Second)))
				w.plan(only("count", func(k cmd, p *plan) {
					if k.n > 1 {
						c.trouble(k, p)
					}
				}))
				ctx := context.Background()
				if c.ctx != 0 {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, c.ctx)
					defer cancel()
				}
				start := w.now()
				_, err := l.Enter(ctx, c.wait)
				for _, is := range c.is {
					require.ErrorIs(t, err, is)
				}
				require.LessOrEqual(t, w.now(), start+100*ms)
				time.Sleep(2 * time.Second)
				_, count, _ := w.look("a")
				require.Equal(t, 1, count, "repaired")
				require.Equal(t, 1, l.Holds())
				require.Zero(t, p.Stats().Running)
				w.plan(nil)
				x, n, err := p.enter(l)
				require.NoError(t, err)
				require.Equal(t, 2, n)
				require.NoError(t, x.unlock())
				require.NoError(t, l.unlock())
			})
		})
	}
}

func TestEnterWaitsForItsTurnNoLongerThanAskedFor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc(func(c *Config) { c.Timeout = time.Second })
		l := p.lock(w.request("a", terms(30*time.Second)))
		w.plan(only("count", func(_ cmd, p *plan) { p.after = 500 * ms }))
		first := make(chan error)
		go func() {
			x, _, err := p.enter(l)
			if err == nil {
				err = x.unlock()
			}
			first <- err
		}()
		synctest.Wait()
		start := w.now()
		_, err := l.Enter(context.Background(), 100*ms)
		require.ErrorIs(t, err, fault.ErrUnavailable)
		require.Equal(t, start+100*ms, w.now())
		ctx, cancel := context.WithTimeout(context.Background(), 100*ms)
		defer cancel()
		_, err = l.Enter(ctx, 0)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, start+200*ms, w.now())
		require.NoError(t, <-first)
		require.NoError(t, l.unlock())
	})
}

func TestUnlockOfANestedLeaseTellsWhatCameOfIt(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(w *world, l *held)
		err   error
		lost  bool
	}{
		"gone":         {func(w *world, _ *held) { w.remove("a") }, fault.ErrLost, true},
		"taken":        {func(w *world, _ *held) { w.occupy("a", time.Second) }, fault.ErrLost, true},
		"fatal":        {func(w *world, _ *held) { w.plan(only("count", failing(fatal, true))) }, fault.ErrUnknown, false},
		"black hole":   {func(w *world, _ *held) { w.plan(only("count", hole)) }, fault.ErrUnknown, false},
		"not executed": {func(w *world, _ *held) { w.plan(only("count", failing(notExecuted, true))) }, fault.ErrUnknown, false},
		"lost meanwhile": {func(w *world, _ *held) {
			w.remove("a")
			w.plan(only("count", func(_ cmd, p *plan) { p.after = 700 * ms }))
		}, fault.ErrLost, true},
		"the root unlocked after a failure": {func(w *world, l *held) {
			w.plan(only("count", failing(unknown, true)))
			time.AfterFunc(50*ms, func() { _ = l.unlock() })
		}, nil, false},
		"the root unlocked meanwhile": {func(w *world, l *held) {
			w.plan(only("count", func(_ cmd, p *plan) { p.before = 10 * ms }))
			time.AfterFunc(5*ms, func() { _ = l.unlock() })
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc()
				start := w.now()
				l := p.lock(w.request("a", terms(900*ms)))
				x, _, err := p.enter(l)
				require.NoError(t, err)
				c.spoil(w, l)
				_, err = x.Unlock(context.Background(), &x.m)
				require.ErrorIs(t, err, c.err)
				require.LessOrEqual(t, w.now(), limit(start, 900*ms))
				synctest.Wait()
				require.Equal(t, c.lost, len(told(p, &p.lost)) == 1)
				require.Equal(t, Released, x.state())
				if c.lost {
					require.ErrorIs(t, context.Cause(l.ctx), fault.ErrLost)
				}
				w.plan(nil)
				_ = l.unlock()
				time.Sleep(time.Second)
			})
		})
	}
}

func TestAnUnlockThatWaitsForItsTurnIsToldOfTheLoss(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		l := p.lock(w.request("a", terms(900*ms)))
		x, _, err := p.enter(l)
		require.NoError(t, err)
		w.plan(only("count", func(_ cmd, p *plan) { p.after = 100 * ms }))
		go func() { _, _ = l.Enter(context.Background(), 0) }()
		synctest.Wait()
		w.remove("a")
		require.ErrorIs(t, x.unlock(), fault.ErrLost)
		require.ErrorIs(t, l.unlock(), fault.ErrLost)
	})
}

// Whatever wins, a lease that Enter gives is one that holds the lock.
func TestEnterAgainstTheLastUnlock(t *testing.T) {
	for range 300 {
		in(t, func(t *testing.T, w *world) {
			p := w.proc()
			l := p.lock(w.request("a", terms(30*time.Second)))
			w.plan(only("count", func(_ cmd, p *plan) { p.after = 0 }))
			left := make(chan int, 1)
			time.AfterFunc(way, func() {
				n, _ := l.Unlock(context.Background(), &l.m)
				left <- n
			})
			x, _, err := p.enter(l)
			n := <-left
			if err != nil {
				require.ErrorIs(t, err, ErrStranger)
				require.Zero(t, n)
				return
			}
			require.Equal(t, 1, n)
			require.Equal(t, Held, x.state())
			require.NoError(t, x.ctx.Err())
			require.Equal(t, x.Owner(), w.holder("a"))
			require.NoError(t, x.unlock())
		})
	}
}

func TestACountUnderWayDoesNotReachTheSuccessor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second, handoff(9)))
		l := p.lock(r)
		next := p.begin(context.Background(), r, false)
		w.plan(only("count", func(_ cmd, p *plan) { p.before = 10 * ms }))
		entered := make(chan error, 1)
		go func() {
			_, _, err := p.enter(l)
			entered <- err
		}()
		synctest.Wait()
		require.NoError(t, l.unlock())
		a := <-next
		require.NoError(t, a.err)
		require.ErrorIs(t, <-entered, ErrStranger)
		time.Sleep(20 * ms)
		_, count, _ := w.look("a")
		require.Equal(t, 1, count)
		require.Equal(t, 1, a.Holds())
		require.NoError(t, a.unlock())
	})
}
