package lease

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// drifted has the wall clock run ahead of the monotonic one by d, as after a
// suspend of that length, or after somebody set it.
func (c *Clock) drifted(d time.Duration) { c.wall -= int64(d) }

func TestTheClockTellsTheTimeSinceItWasMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		asked := 0
		c := newClock(func() time.Duration { asked++; return 42 * time.Hour })
		require.Zero(t, c.Now())
		time.Sleep(time.Minute)
		require.Equal(t, time.Minute, c.Now())
		require.Equal(t, 1, asked, "the slept time is asked for only when the clocks drift")
		require.Zero(t, NewClock().Now())
	})
}

func TestTheClockCountsSleptTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slept, asked := 42*time.Hour, 0
		c := newClock(func() time.Duration { asked++; return slept })
		time.Sleep(time.Second)

		slept += 5 * time.Minute
		c.drifted(5 * time.Minute)
		require.Equal(t, 5*time.Minute+time.Second, c.Now())
		require.Equal(t, 5*time.Minute+time.Second, c.Now())
		require.Equal(t, 2, asked, "once for each drift")

		c.drifted(-time.Hour) // somebody sets the wall clock back
		require.Equal(t, 5*time.Minute+time.Second, c.Now())
		require.Equal(t, 3, asked)
		c.drifted(24 * time.Hour) // and ahead
		require.Equal(t, 5*time.Minute+time.Second, c.Now())
		require.Equal(t, 4, asked)

		c.drifted(driftStep) // noise
		require.Equal(t, 5*time.Minute+time.Second, c.Now())
		require.Equal(t, 4, asked)

		slept -= time.Minute // a worse reading takes nothing away
		c.drifted(time.Second)
		require.Equal(t, 5*time.Minute+time.Second, c.Now())
		slept += 2 * time.Minute
		c.drifted(time.Minute)
		require.Equal(t, 6*time.Minute+time.Second, c.Now())
	})
}

func TestTheClockNeverGoesBackWhoeverAsks(t *testing.T) {
	var slept atomic.Int64
	c := newClock(func() time.Duration { return time.Duration(slept.Load()) })
	var mu sync.RWMutex // guards the wall clock of c, which is constant otherwise
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := time.Duration(0)
			for range 2000 {
				mu.RLock()
				now := c.Now()
				mu.RUnlock()
				if now < last {
					t.Errorf("%v after %v", now, last)
				}
				last = now
			}
		})
	}
	for range 50 {
		mu.Lock()
		slept.Add(int64(time.Second))
		c.drifted(time.Second)
		mu.Unlock()
		require.GreaterOrEqual(t, c.Now(), time.Duration(slept.Load()))
	}
	wg.Wait()
}

func TestTheMachinesSleepIsKnown(t *testing.T) {
	slept := machineSlept()
	require.GreaterOrEqual(t, slept, -time.Second)
	require.InDelta(t, float64(slept), float64(machineSlept()), float64(time.Second))
	c := NewClock()
	require.Less(t, c.Now(), time.Minute)
}
