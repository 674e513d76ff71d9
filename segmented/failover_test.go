package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/segmented"
)

// A primary of a cluster dies when its replica is in step: patience is all it
// costs.
func TestFailover_thatLosesNothingCostsPatienceOnly(t *testing.T) {
	t.Parallel() // it waits for its cluster most of the time
	c := redistest.RunCluster(t)
	s := openStock(t, sessionOn(t, c.Client(t)), "shoe")
	require.NoError(t, s.Init(t.Context(), 1000))
	for i := range 100 {
		sell(t, s, fmt.Sprint("before", i), 1)
	}
	slot := c.Slot("{shoe:0}")
	c.Owner(slot).WaitInStep(t, c.Replicas(slot)...)
	c.KillPrimary(t, slot)
	var sold atomic.Int64
	var wg sync.WaitGroup
	for b := range 8 {
		wg.Go(func() {
			for i := range 25 {
				order := segmented.Order{ID: fmt.Sprint("after", b, "-", i), Qty: 1, Window: time.Hour}
				until(t, func(ctx context.Context) error { _, err := s.Reserve(ctx, order); return err })
				until(t, func(ctx context.Context) error { _, err := s.Confirm(ctx, order.ID); return err })
				sold.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 200, sold.Load())
	requireUnits(t, s, 700, 0, 300)
	report, err := s.Reconcile(t.Context(), 300)
	require.NoError(t, err)
	require.Zero(t, report.Drift)
}

// until repeats a call whose outcome is not known, as every caller may.
func until(t *testing.T, call func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for {
		err := call(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, holdfast.ErrUnknown) && !errors.Is(err, holdfast.ErrUnavailable) || ctx.Err() != nil {
			t.Error(err)
			return
		}
	}
}

// A failover loses the last writes: sums hold, what was lost was sold by the books
// and is on sale here, and Reconcile says how many.
func TestFailover_thatLosesWritesIsShownByReconcile(t *testing.T) {
	srv := redistest.Run(t)
	replica := srv.Replica(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	books := int64(0)
	for i := range 4 {
		sell(t, s, fmt.Sprint(i), 1)
		books++
	}
	reserve(t, s, "reserved", 1)
	srv.WaitInStep(t, replica)
	replica.Promote(t) // from here on it hears of nothing
	sell(t, s, "lost", 2)
	books += 2
	_, err := s.Confirm(t.Context(), "reserved")
	require.NoError(t, err)
	books++

	after := openStock(t, session(t, replica.Addr()), "shoe")
	requireUnits(t, after, 5, 1, 4)
	report, err := after.Reconcile(t.Context(), books)
	require.NoError(t, err)
	require.EqualValues(t, -3, report.Drift, "three were sold, and are not")
	require.Zero(t, report.Unaccounted())
	// What the books have is told to the stock again: that is what ids are for.
	r, err := after.Confirm(t.Context(), "reserved")
	require.NoError(t, err)
	require.False(t, r.Replayed)
	_, err = after.Confirm(t.Context(), "lost")
	require.ErrorIs(t, err, segmented.ErrUnknownOrder)
	sell(t, after, "lost", 2)
	report, err = after.Reconcile(t.Context(), books)
	require.NoError(t, err)
	require.Zero(t, report.Drift)
	requireUnits(t, after, 3, 0, 7)
}

func TestFailover_aMovingSlotCostsNothing(t *testing.T) {
	t.Parallel() // it waits for its cluster most of the time
	c := redistest.RunCluster(t, redistest.ClusterOptions{Replicas: 0})
	s := openStock(t, sessionOn(t, c.Client(t)), "shoe")
	require.NoError(t, s.Init(t.Context(), 1000))
	sell(t, s, "first", 1)
	slot := c.Slot("{shoe:0}")
	var sold atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for b := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				order := segmented.Order{ID: fmt.Sprint(b, "-", i), Qty: 1, Window: time.Hour}
				if sold.Add(1) > 800 {
					sold.Add(-1)
					return
				}
				until(t, func(ctx context.Context) error { _, err := s.Reserve(ctx, order); return err })
				until(t, func(ctx context.Context) error { _, err := s.Confirm(ctx, order.ID); return err })
			}
		})
	}
	for _, to := range c.Servers() {
		if to != c.Owner(slot) {
			c.MoveSlot(t, slot, to)
		}
	}
	close(stop)
	wg.Wait()
	requireUnits(t, s, 999-sold.Load(), 0, 1+sold.Load())
}
