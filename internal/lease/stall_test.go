package lease

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func stallAfter(d time.Duration) func(c *Config) { return func(c *Config) { c.StallAfter = d } }

func TestALongWaitIsReportedByTheHead(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc(stallAfter(10 * time.Second))
		w.occupy("a", time.Hour)
		r := w.request("a", terms(30*time.Second))
		ctx, cancel := context.WithCancel(context.Background())
		start := w.now()
		a := p.begin(ctx, r, false)
		time.Sleep(time.Second)
		b := p.begin(ctx, r, false)
		w.until(start + 35*time.Second)
		stalls := told(p, &p.stalls)
		require.Len(t, stalls, 3)
		for i, s := range stalls {
			after := time.Duration(i+1) * 10 * time.Second
			require.Equal(t, stallAt{Stall{Waiting: 2, For: after}, start + after, "a"}, s)
		}
		cancel()
		require.Error(t, (<-a).err)
		require.Error(t, (<-b).err)
	})
}

func TestTheNextHeadReportsItsOwnWait(t *testing.T) {
	for name, h := range map[string]int{"handed over": 9, "released": 0} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc(stallAfter(10 * time.Second))
				r := w.request("a", terms(30*time.Second, handoff(h)))
				l := p.lock(r)
				b := p.begin(context.Background(), r, false)
				c := p.begin(context.Background(), r, false)
				time.Sleep(ms)
				require.NoError(t, l.unlock())
				second := <-b
				require.NoError(t, second.err)
				time.Sleep(15 * time.Second)
				waits := 0
				for _, s := range told(p, &p.stalls) {
					if s.Owner == "" {
						waits++
						require.Equal(t, 1, s.Waiting)
						require.GreaterOrEqual(t, s.For, 10*time.Second)
					}
				}
				require.Equal(t, 1, waits)
				require.NoError(t, second.unlock())
				require.NoError(t, (<-c).unlock())
			})
		})
	}
}

func TestALongHoldIsReported(t *testing.T) {
	for name, f := range map[string]func(*Terms){"renewed": handoff(0), "fixed": fixed} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc(stallAfter(10 * time.Second))
				l := p.lock(w.request("a", terms(time.Minute, f)))
				granted := w.now()
				time.Sleep(35 * time.Second)
				stalls := told(p, &p.stalls)
				require.Len(t, stalls, 3)
				for i, s := range stalls {
					after := time.Duration(i+1) * 10 * time.Second
					require.Equal(t, stallAt{Stall{For: after, Owner: l.Owner()}, granted + after, "a"}, s)
				}
				require.NoError(t, l.unlock())
				time.Sleep(time.Minute)
				require.Len(t, told(p, &p.stalls), 3)
			})
		})
	}
}

func TestAHoldThatOutlivesItsCallersContextIsReported(t *testing.T) {
	for name, after := range map[string]time.Duration{"on": time.Hour, "off": -1} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.proc(stallAfter(after))
				ctx, cancel := context.WithCancel(context.Background())
				l, err := p.acquire(ctx, w.request("a", terms(3*time.Second, grace(-1))), false)
				require.NoError(t, err)
				time.Sleep(10 * time.Second)
				require.Empty(t, told(p, &p.stalls))
				cancel()
				time.Sleep(10 * time.Second)
				stalls := told(p, &p.stalls)
				if after < 0 {
					require.Empty(t, stalls)
				} else {
					require.NotEmpty(t, stalls)
					for _, s := range stalls {
						require.True(t, s.Ended)
						require.Equal(t, l.Owner(), s.Owner)
					}
				}
				require.NoError(t, l.unlock())
			})
		})
	}
}

func TestNegativeStallAfterReportsNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc()
		r := w.request("a", terms(30*time.Second))
		l := p.lock(r)
		next := p.begin(context.Background(), r, false)
		time.Sleep(time.Hour)
		require.NoError(t, l.unlock())
		require.NoError(t, (<-next).unlock())
		require.Empty(t, told(p, &p.stalls))
	})
}

func TestNilEventsAreLeftOut(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc(stallAfter(time.Second), func(c *Config) {
			cause := c.Events.Cause
			c.Events = Events{Cause: cause}
		})
		w.plan(only("take", func(c cmd, p *plan) {
			if c.at < 1001*ms {
				p.err, p.skip = notExecuted(), true
			}
		}))
		l := p.lock(w.request("a", terms(3*time.Second)))
		next := p.begin(context.Background(), l.Request(), false)
		time.Sleep(5 * time.Second)
		w.remove("a")
		<-l.ctx.Done()
		a := <-next
		require.NoError(t, a.err)
		w.remove("a")
		require.Error(t, a.unlock())
	})
}
