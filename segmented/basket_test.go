package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
	"github.com/holdfast-go/holdfast/segmented"
)

// stocks are two stocks of so many units each.
func stocks(t testing.TB, a, b int64) (one, two *segmented.Stock) {
	t.Helper()
	hf := session(t, server.Addr())
	one, two = openStock(t, hf, key(t)+"-1"), openStock(t, hf, key(t)+"-2")
	require.NoError(t, one.Init(t.Context(), a))
	require.NoError(t, two.Init(t.Context(), b))
	return one, two
}

func lines(stocks ...*segmented.Stock) (l []segmented.Line) {
	for i, s := range stocks {
		l = append(l, segmented.Line{Stock: s, Qty: int64(1 + i)})
	}
	return l
}

func TestBasket_getsAllOrNothing(t *testing.T) {
	one, two := stocks(t, 5, 5)
	ctx := t.Context()
	b := segmented.Basket{ID: "cart", Buyer: "ann", Window: time.Minute, Lines: lines(two, one)} // in an order of their own
	list, err := b.Reserve(ctx)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.EqualValues(t, 1, list[0].Order.Qty)
	require.EqualValues(t, 2, list[1].Order.Qty)
	for _, r := range list {
		require.Equal(t, segmented.Reserved, r.State)
		require.Greater(t, r.Left, 50*time.Second, "not the time of a basket that is undecided")
	}
	requireUnits(t, one, 3, 2, 0)
	requireUnits(t, two, 4, 1, 0)
	again, err := b.Reserve(ctx)
	require.NoError(t, err)
	require.True(t, again[0].Replayed)
	requireUnits(t, one, 3, 2, 0)

	_, err = segmented.Basket{ID: "large", Lines: []segmented.Line{{Stock: one, Qty: 1}, {Stock: two, Qty: 5}}}.Reserve(ctx)
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	require.EqualValues(t, 4, left(t, err))
	require.ErrorContains(t, err, two.Name())
	requireUnits(t, one, 3, 2, 0)
	requireUnits(t, two, 4, 1, 0)
	require.NoError(t, two.Add(ctx, segmented.Delivery{ID: "d", Qty: 1}))
	large := segmented.Basket{ID: "large", Lines: []segmented.Line{{Stock: one, Qty: 1}, {Stock: two, Qty: 5}}}
	_, err = large.Reserve(ctx)
	require.NoError(t, err, "the same cart, when there is enough")
	require.NoError(t, large.Cancel(ctx))
	requireUnits(t, one, 3, 2, 0)
	requireUnits(t, two, 5, 1, 0)

	sold, err := b.Confirm(ctx)
	require.NoError(t, err)
	require.Equal(t, segmented.Sold, sold[1].State)
	_, err = b.Confirm(ctx)
	require.NoError(t, err)
	requireUnits(t, one, 3, 0, 2)
	requireUnits(t, two, 5, 0, 1)
	require.ErrorIs(t, b.Cancel(ctx), segmented.ErrState)
}

func TestBasket_badOnesAreRefusedAtTheDoor(t *testing.T) {
	one, two := stocks(t, 5, 5)
	for _, b := range []segmented.Basket{
		{ID: "b"},
		{ID: "b", Lines: lines(one, one)},
		{ID: "b", Lines: []segmented.Line{{Qty: 1}}},
		{ID: "b", Lines: []segmented.Line{{Stock: two}}},
		{ID: "b", Window: -1, Lines: lines(one)},
		{ID: "b", Window: 1000 * 1000 * time.Hour, Lines: lines(one)},
	} {
		_, err := b.Reserve(t.Context())
		require.ErrorIs(t, err, holdfast.ErrOption, "%+v", b)
	}
	_, err := segmented.Basket{Lines: lines(one)}.Reserve(t.Context())
	require.ErrorIs(t, err, holdfast.ErrName)
	requireUnits(t, one, 5, 0, 0)
	requireUnits(t, two, 5, 0, 0)
}

func TestBasket_oneLineThatExpiredSellsNothing(t *testing.T) {
	one, two := stocks(t, 5, 5)
	b := segmented.Basket{ID: "cart", Window: time.Minute, Lines: lines(one, two)}
	_, err := b.Reserve(t.Context())
	require.NoError(t, err)
	_, err = two.Cancel(t.Context(), "cart")
	require.NoError(t, err)
	_, err = b.Confirm(t.Context())
	require.ErrorIs(t, err, segmented.ErrState)
	requireUnits(t, one, 4, 1, 0)

	c := segmented.Basket{ID: "late", Window: 20 * time.Millisecond, Lines: lines(one, two)}
	_, err = c.Reserve(t.Context())
	require.NoError(t, err)
	time.Sleep(30 * time.Millisecond)
	_, err = c.Confirm(t.Context())
	require.ErrorIs(t, err, segmented.ErrExpired)
	requireUnits(t, one, 4, 1, 0)
}

// killedBasket reserves in the first stock tentatively, and never comes to the
// second.
func killedBasket() {
	one := childStock()
	if err := os.Setenv("NAME", os.Getenv("SECOND")); err != nil {
		panic(err)
	}
	two := childStock()
	_, err := segmented.Basket{ID: "killed", Lines: lines(one, two)}.Reserve(context.Background())
	panic(err)
}

// A basket that is not decided: others wait, and are not told that it is sold out.
func TestBasket_othersWaitForTheDecision(t *testing.T) {
	b := breakable(t)
	hf := session(t, b.Addr())
	one, two := openStock(t, hf, "a"), openStock(t, hf, "b")
	require.NoError(t, one.Init(t.Context(), 1))
	require.NoError(t, two.Init(t.Context(), 2))
	hold := b.proxy.HoldRequest("holdfast_stock_units:{b:0}")
	child := redistest.Child(t, "killed basket", "ADDR="+b.proxy.Addr(), "NAME=a", "SECOND=b")
	<-hold.Held() // it has the unit of the first, and asks for those of the second
	v, err := one.View(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, v.Tentative)
	require.Zero(t, v.Unaccounted())

	_, err = one.Reserve(t.Context(), segmented.Order{ID: "two units", Qty: 2})
	require.ErrorIs(t, err, segmented.ErrSoldOut, "which no decision can help")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	_, err = one.Reserve(ctx, segmented.Order{ID: "impatient", Qty: 1})
	cancel()
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, segmented.ErrSoldOut)

	began := time.Now()
	child.Kill()
	before := b.Calls(t)
	r, err := one.Reserve(within(t, 20*time.Second), segmented.Order{ID: "waits", Qty: 1})
	require.NoError(t, err)
	require.Equal(t, segmented.Reserved, r.State)
	require.Less(t, time.Since(began), 15*time.Second)
	require.LessOrEqual(t, b.Calls(t).Since(before).Scripts(), int64(10), "it does not poll")
	requireUnits(t, one, 0, 1, 0)
	_, err = one.Get(t.Context(), "killed")
	require.ErrorIs(t, err, segmented.ErrUnknownOrder, "and nobody is told that it expired")
	list, err := one.Expired(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, list)
}

func TestBasket_aDecisionWakesThoseWhoWait(t *testing.T) {
	for _, way := range []string{"taken", "given back"} {
		t.Run(way, func(t *testing.T) {
			b := breakable(t)
			direct, proxied := session(t, b.Addr()), session(t, b.proxy.Addr())
			units := int64(3)
			if way == "given back" {
				units = 0
			}
			require.NoError(t, openStock(t, direct, "a").Init(t.Context(), 1))
			require.NoError(t, openStock(t, direct, "b").Init(t.Context(), units))
			hold := b.proxy.HoldRequest("holdfast_stock_units:{b:0}")
			done := make(chan error, 1)
			go func() {
				_, err := segmented.Basket{ID: "slow", Lines: lines(openStock(t, proxied, "a"), openStock(t, proxied, "b"))}.Reserve(context.Background())
				done <- err
			}()
			<-hold.Held()
			began := time.Now()
			waits := make(chan error, 1)
			go func() {
				_, err := openStock(t, direct, "a").Reserve(context.Background(), segmented.Order{ID: "waits", Qty: 1})
				waits <- err
			}()
			redistest.Eventually(t, 3*time.Second, "it waits", func() bool { return len(b.Channels(t)) == 1 })
			hold.Release()
			if way == "taken" {
				require.NoError(t, <-done)
				require.ErrorIs(t, <-waits, segmented.ErrSoldOut)
			} else {
				require.ErrorIs(t, <-done, segmented.ErrSoldOut)
				require.NoError(t, <-waits)
			}
			require.Less(t, time.Since(began), 4500*time.Millisecond, "by the message, not by the end of its time")
		})
	}
}

// A basket is slow, and its first line is over when it comes to settle it.
func TestBasket_thatCameToLateHasNothing(t *testing.T) {
	b := breakable(t)
	direct, proxied := session(t, b.Addr()), session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 10 * time.Second})
	one, two := openStock(t, direct, "a"), openStock(t, direct, "b")
	require.NoError(t, one.Init(t.Context(), 1))
	require.NoError(t, two.Init(t.Context(), 3))
	hold := b.proxy.HoldRequest(sha(t, b.Server, scripts.StockSettle))
	basket := segmented.Basket{ID: "slow", Lines: lines(openStock(t, proxied, "a"), openStock(t, proxied, "b"))}
	done := make(chan error, 1)
	go func() {
		_, err := basket.Reserve(context.Background())
		done <- err
	}()
	<-hold.Held()
	for _, name := range []string{"a", "b"} { // five seconds go by
		b.Do(t, "ZADD", "holdfast_stock_ends:{"+name+":0}", "1", "slow")
		record := "holdfast_stock_orders:{" + name + ":0}"
		qty := map[string]string{"a": "1", "b": "2"}[name]
		b.Do(t, "HSET", record, "o:slow", "t "+qty+" 0 1 ")
	}
	hold.Release()
	require.ErrorIs(t, <-done, segmented.ErrExpired)
	_, err := two.Sweep(t.Context())
	require.NoError(t, err)
	requireUnits(t, one, 1, 0, 0)
	requireUnits(t, two, 3, 0, 0)
}

func TestBasket_manyAtOnceStrandNothing(t *testing.T) {
	one, two := stocks(t, 30, 60)
	var got atomic.Int64
	var wg sync.WaitGroup
	for c := range 12 {
		hf := session(t, server.Addr())
		a, b := openStock(t, hf, one.Name()), openStock(t, hf, two.Name())
		random := rand.New(rand.NewPCG(uint64(c), 1))
		wg.Go(func() {
			for i := range 10 {
				ls := lines(a, b)
				if random.IntN(2) == 0 {
					ls[0], ls[1] = ls[1], ls[0]
				}
				basket := segmented.Basket{ID: fmt.Sprint(c, "-", i), Lines: ls}
				_, err := basket.Reserve(context.Background())
				if errors.Is(err, segmented.ErrSoldOut) {
					continue
				}
				if err == nil && random.IntN(4) == 0 {
					err = basket.Cancel(context.Background())
				} else if err == nil {
					got.Add(1)
					_, err = basket.Confirm(context.Background())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 30, got.Load(), "unsold is 0")
	requireUnits(t, one, 0, 0, 30)
	requireUnits(t, two, 0, 0, 60)
}

// Nothing answers: the basket does not keep its caller for longer than one command
// may take after ctx has ended, and what it took comes back by itself.
func TestBasket_anOutageIsBounded(t *testing.T) {
	b := breakable(t)
	direct := session(t, b.Addr())
	proxied := session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 2 * time.Second})
	var ls []segmented.Line
	for i := range 6 {
		name := fmt.Sprint("s", i)
		require.NoError(t, openStock(t, direct, name).Init(t.Context(), 5))
		ls = append(ls, segmented.Line{Stock: openStock(t, proxied, name), Qty: 1})
	}
	_, err := segmented.Basket{ID: "warm", Lines: ls}.Reserve(t.Context())
	require.NoError(t, err)
	hold := b.proxy.HoldRequest("holdfast_stock_units:{s4:0}")
	go func() { <-hold.Held(); b.proxy.BlackHole() }()
	began := time.Now()
	_, err = segmented.Basket{ID: "b", Lines: ls}.Reserve(within(t, time.Second))
	require.ErrorIs(t, err, holdfast.ErrUnknown)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), 6*time.Second)
	r, err := openStock(t, direct, "s0").Reserve(within(t, 20*time.Second), segmented.Order{ID: "all", Qty: 4})
	require.NoError(t, err)
	require.Equal(t, segmented.Reserved, r.State)
}
