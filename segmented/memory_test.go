package segmented_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/segmented"
)

// What docs/ARCHITECTURE.md says of memory.
func TestStock_memoryForAnOrder(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	const orders = 20_000
	require.NoError(t, s.Init(t.Context(), orders))
	used := func() float64 {
		n, err := strconv.ParseFloat(srv.Do(t, "EVAL", `return tostring(
			redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 0) + redis.call('MEMORY', 'USAGE', KEYS[2], 'SAMPLES', 0))`, "2",
			"holdfast_stock_orders:{shoe:0}", "holdfast_stock_"+map[bool]string{true: "forget", false: "ends"}[srv.Do(t, "EXISTS", "holdfast_stock_ends:{shoe:0}") == "0"]+":{shoe:0}"), 64)
		require.NoError(t, err)
		return n / orders
	}
	all := func(call func(id string) error) {
		var wg sync.WaitGroup
		for part := range 50 {
			wg.Go(func() {
				for i := part; i < orders; i += 50 {
					if err := call(fmt.Sprintf("%010d", i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	all(func(id string) error {
		_, err := s.Reserve(context.Background(), segmented.Order{ID: id, Buyer: id, Qty: 1})
		return err
	})
	reserved := used()
	all(func(id string) error { _, err := s.Confirm(context.Background(), id); return err })
	sold := used()
	t.Logf("%.0f bytes for a reserved order, %.0f for a sold one", reserved, sold)
	require.Less(t, max(reserved, sold), 400.0)
}
