package main

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/segmented"
)

func openTestStock(t *testing.T, units int) *stocked {
	t.Helper()
	client, err := connect("redis://" + redistest.Run(t).Addr())
	require.NoError(t, err)
	t.Cleanup(client.Close)
	g, err := openStock(t.Context(), client, keys{Goods: "goods", Orders: "orders"})
	require.NoError(t, err)
	t.Cleanup(g.close)
	require.NoError(t, g.fill(t.Context(), units))
	return g.(*stocked)
}

// who buys with pay, which may be nil.
func who(order string, pay func(context.Context) error) purchase {
	if pay == nil {
		pay = func(context.Context) error { return nil }
	}
	return purchase{order: order, begin: func() {}, pay: pay}
}

func TestStock_whatADeadBuyerHasReservedComesBack(t *testing.T) {
	s := openTestStock(t, 1)
	_, err := s.stock.Reserve(t.Context(), segmented.Order{ID: "dead", Qty: 1})
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, s.buy(t.Context(), who("next", nil)), "it waits, and is not told that all is sold")
	require.Greater(t, time.Since(began), window/2)
	require.ErrorIs(t, s.buy(t.Context(), who("last", nil)), errSoldOut)
	left, err := s.left(t.Context())
	require.NoError(t, err)
	require.Zero(t, left)
}

func TestStock_aPaymentThatComesTooLateTakesNothing(t *testing.T) {
	s := openTestStock(t, 1)
	err := s.buy(t.Context(), who("late", func(ctx context.Context) error {
		time.Sleep(window + 50*time.Millisecond)
		return s.buy(ctx, who("other", nil))
	}))
	require.ErrorIs(t, err, segmented.ErrExpired)
	sold, err := s.sold(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"other"}, slices.Collect(maps.Keys(sold)))
}

func TestStock_countsWhatTheBooksOrTheStockKnow(t *testing.T) {
	s := openTestStock(t, 2)
	require.NoError(t, s.buy(t.Context(), who("written", nil)))
	_, err := s.stock.Reserve(t.Context(), segmented.Order{ID: "killed", Qty: 1}) // after Confirm
	require.NoError(t, err)
	_, err = s.stock.Confirm(t.Context(), "killed")
	require.NoError(t, err)
	require.NoError(t, s.client.Do(t.Context(), s.client.B().Hset().Key("orders").FieldValue().FieldValue("forged", "1").Build()).Error())
	sold, err := s.sold(t.Context())
	require.NoError(t, err)
	require.Equal(t, damage{sold: 3, oversold: 1}, assess(2, sold))
}
