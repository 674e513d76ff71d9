package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type key struct{}

func TestACallHasTheValuesOfItsCallerButNotItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "trace"))
		cancel()
		c := newCall(parent, time.Second)
		require.Equal(t, "trace", c.Value(key{}))
		require.NoError(t, c.Err())
		require.NoError(t, context.Cause(c))
		deadline, ok := c.Deadline()
		require.True(t, ok)
		require.Equal(t, time.Now().Add(time.Second), deadline)
		child, stop := context.WithCancel(c)
		defer stop()
		synctest.Wait()
		require.NoError(t, child.Err(), "what is made of it does not end with the caller either")
		c.stop()
		synctest.Wait()
		require.ErrorIs(t, child.Err(), context.Canceled)
	})
}

func TestACallMakesATimerOnlyIfSomebodyAsksForDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCall(context.Background(), time.Second)
		require.Nil(t, c.horizon.timer)
		time.Sleep(time.Second - 1)
		require.NoError(t, c.Err())
		require.Nil(t, c.horizon.timer)
		time.Sleep(time.Nanosecond)
		require.Equal(t, context.DeadlineExceeded, c.Err())
		require.Nil(t, c.horizon.timer)
		<-c.Done()
		c.stop()
		require.Equal(t, context.DeadlineExceeded, c.Err(), "the first end stands")
	})
}

func TestACallEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c := newCall(context.Background(), time.Second)
		done := c.Done()
		require.Equal(t, done, c.Done())
		require.NotNil(t, c.horizon.timer)
		select {
		case <-done:
			require.Fail(t, "too early")
		default:
		}
		<-done
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, context.DeadlineExceeded, c.Err())
		c.stop()
		require.Equal(t, context.DeadlineExceeded, c.Err())
	})
}

func TestACallThatIsStoppedLeavesNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCall(context.Background(), time.Second)
		done := c.Done()
		c.stop()
		c.stop()
		<-done
		require.Equal(t, context.Canceled, c.Err())
		require.False(t, c.horizon.timer.Stop())

		c = newCall(context.Background(), time.Second)
		c.stop()
		<-c.Done()
		require.Nil(t, c.horizon.timer)
		require.Equal(t, context.Canceled, c.Err())
		time.Sleep(2 * time.Second)
		require.Equal(t, context.Canceled, c.Err())
	})
}

func TestErrIsNilOnlyWhileDoneIsOpen(t *testing.T) {
	// The timer may be late: then Err closes Done.
	synctest.Test(t, func(t *testing.T) {
		c := newCall(context.Background(), time.Second)
		done := c.Done()
		c.horizon.timer.Stop()
		time.Sleep(time.Second)
		require.Equal(t, context.DeadlineExceeded, c.Err())
		<-done
	})
}

func TestCallsOfOneMomentShareADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 64 * time.Millisecond
		k := NewKeeper(Config{Clock: NewClock(), Timeout: timeout})
		left := func(c *call) time.Duration {
			deadline, _ := c.Deadline()
			return time.Until(deadline)
		}
		begin := func(within time.Duration) *call {
			return k.begin(context.Background(), new(call), within, k.clock.Now())
		}
		first := begin(timeout)
		require.Equal(t, timeout, left(first))
		time.Sleep(time.Millisecond)
		second := begin(timeout)
		require.Equal(t, timeout-time.Millisecond, left(second))
		require.Equal(t, first.Done(), second.Done())
		short := begin(10 * time.Millisecond)
		require.Equal(t, 10*time.Millisecond, left(short))
		time.Sleep(time.Nanosecond)
		third := begin(timeout)
		require.Equal(t, timeout, left(third), "none is more than a 64th too early")

		first.stop()
		short.stop()
		require.ErrorIs(t, short.Err(), context.Canceled)
		require.NoError(t, second.Err(), "a command that is over ends no other")
		time.Sleep(left(second) - 1)
		require.NoError(t, second.Err())
		<-second.Done()
		require.Equal(t, context.DeadlineExceeded, second.Err())
		require.NoError(t, third.Err())

		again := k.begin(context.Background(), third, timeout, k.clock.Now())
		require.NotSame(t, third, again, "somebody may still have it")
	})
}

func TestTheStoreIsCalledWithTheCallersValuesAndItsOwnDeadline(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.proc(func(c *Config) { c.Timeout = 2 * time.Second })
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), key{}, "trace"), time.Hour)
		defer cancel()
		r := w.request("a", terms(30*time.Second))
		spy := &spy{store: r.Store.(*store)}
		r.Store = spy
		l, err := p.acquire(ctx, r, false)
		require.NoError(t, err)
		n, err := l.Enter(ctx, 0)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		inner := p.join(ctx, l.Hold)
		cancel() // commands that follow go on all the same
		_, err = inner.Unlock(ctx, &inner.m)
		require.NoError(t, err)
		_, err = l.Unlock(ctx, &l.m)
		require.NoError(t, err)
		require.Equal(t, []string{
			"take trace 2s", "count trace 2s", "count trace 2s",
			"release trace 1.9985s", // with the deadline of the first, which was sent a moment before
		}, spy.calls)
	})
}

// A spy notes with which context it is called.
type spy struct {
	*store
	calls []string
}

func (s *spy) note(ctx context.Context, op string) {
	deadline, _ := ctx.Deadline()
	value, _ := ctx.Value(key{}).(string)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, op+" "+value+" "+time.Until(deadline).String())
}

func (s *spy) Take(ctx context.Context, owner string, block int) (Grant, error) {
	s.note(ctx, "take")
	return s.store.Take(ctx, owner, block)
}

func (s *spy) Count(ctx context.Context, owner string, holds int) (Verdict, error) {
	s.note(ctx, "count")
	return s.store.Count(ctx, owner, holds)
}

func (s *spy) Release(ctx context.Context, owner string, keep time.Duration) (Farewell, error) {
	s.note(ctx, "release")
	return s.store.Release(ctx, owner, keep)
}
