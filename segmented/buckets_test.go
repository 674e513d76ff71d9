package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// requireSoldOut checks that nothing is left, in no bucket and on no way between
// them.
func requireSoldOut(t testing.TB, s *segmented.Stock, added int64) {
	t.Helper()
	_, err := s.Sweep(t.Context()) // what others had begun to move
	require.NoError(t, err)
	v, err := s.View(t.Context())
	require.NoError(t, err)
	require.Equal(t, segmented.Units{Sold: added, Added: added}, v.Units)
}

// Stock that is stranded in other buckets than the buyer's.
func TestBuckets_oneAfterTheOtherTenBuyersOfOneBucketGetTenUnits(t *testing.T) {
	s := newStock(t, 10, segmented.StockOptions{Buckets: 8})
	ids := idsOf(0, 8, 11)
	for _, id := range ids[:10] {
		sell(t, s, id, 1)
	}
	_, err := s.Reserve(t.Context(), segmented.Order{ID: ids[10], Qty: 1})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	require.Zero(t, left(t, err))
	requireSoldOut(t, s, 10)
}

func TestBuckets_ofFiftyBuyersAtOnceExactlyTenGetAUnit(t *testing.T) {
	for name, ids := range map[string][]string{
		"of one bucket":   idsOf(0, 8, 50),
		"of two buckets":  slices.Concat(idsOf(0, 8, 25), idsOf(7, 8, 25)),
		"of many buckets": slices.Concat(idsOf(0, 8, 10), idsOf(2, 8, 10), idsOf(3, 8, 10), idsOf(5, 8, 10), idsOf(6, 8, 10)),
	} {
		t.Run(name, func(t *testing.T) {
			for range 4 {
				s := newStock(t, 10, segmented.StockOptions{Buckets: 8})
				sessions := []*segmented.Stock{s, another(t, s), another(t, s), another(t, s)}
				var got atomic.Int64
				var wg sync.WaitGroup
				for i, id := range ids {
					s := sessions[i%len(sessions)]
					wg.Go(func() {
						_, err := s.Reserve(context.Background(), segmented.Order{ID: id, Qty: 1})
						if err == nil {
							_, err = s.Confirm(context.Background(), id)
							got.Add(1)
						} else if errors.Is(err, segmented.ErrSoldOut) {
							return
						}
						if err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				require.EqualValues(t, 10, got.Load())
				requireSoldOut(t, s, 10)
				named.Delete(t) // the next round has another stock
			}
		})
	}
}

func TestBuckets_aLargeOrderGetsUnitsFromSeveral(t *testing.T) {
	s := newStock(t, 8, segmented.StockOptions{Buckets: 8})
	sell(t, s, idsOf(0, 8, 1)[0], 3)
	sell(t, s, idsOf(5, 8, 1)[0], 3)
	_, err := s.Reserve(t.Context(), segmented.Order{ID: idsOf(2, 8, 1)[0], Qty: 3})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	require.EqualValues(t, 2, left(t, err))
	sell(t, s, idsOf(6, 8, 1)[0], 2)
	requireSoldOut(t, s, 8)

	all := newStockOf(t, "all", 8, 8)
	sell(t, all, "everything", 8)
	requireSoldOut(t, all, 8)
}

// newStockOf is a second stock in a test.
func newStockOf(t testing.TB, suffix string, units int64, buckets int) *segmented.Stock {
	t.Helper()
	s := openStock(t, session(t, server.Addr()), key(t)+suffix, segmented.StockOptions{Buckets: buckets})
	require.NoError(t, s.Init(t.Context(), units))
	return s
}

// Large orders, each of which has a part of what the others want: all that can be
// had are, and in time.
func TestBuckets_largeOrdersDoNotTakeUnitsFromEachOtherForEver(t *testing.T) {
	var hfs []*holdfast.Session
	for range 4 {
		hfs = append(hfs, session(t, server.Addr()))
	}
	longest := time.Duration(0)
	for _, c := range []struct {
		orders     int
		qty, units int64
	}{{2, 5, 8}, {2, 8, 8}, {4, 3, 8}, {8, 4, 16}, {6, 7, 20}} {
		for round := range 6 {
			name := fmt.Sprint(key(t), "-", c.orders, "-", c.qty, "-", round)
			require.NoError(t, openStock(t, hfs[0], name, segmented.StockOptions{Buckets: 8}).Init(t.Context(), c.units))
			var stocks []*segmented.Stock
			for _, hf := range hfs {
				stocks = append(stocks, openStock(t, hf, name))
			}
			var got atomic.Int64
			var wg sync.WaitGroup
			began := time.Now()
			for i := range c.orders {
				s := stocks[i%len(stocks)]
				id := idsOf(i*7%8, 8, 1)[0]
				wg.Go(func() {
					_, err := s.Reserve(within(t, 30*time.Second), segmented.Order{ID: id, Qty: c.qty})
					if err == nil {
						got.Add(1)
					} else if !errors.Is(err, segmented.ErrSoldOut) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			longest = max(longest, time.Since(began))
			require.Equal(t, c.units/c.qty, got.Load(), "%+v", c)
			requireUnits(t, stocks[0], c.units%c.qty, c.units-c.units%c.qty, 0)
		}
	}
	t.Logf("all had their answer within %v", longest)
}

// Units on their way belong to a caller who may never come back: whoever wants them
// finishes their way.
func TestSoldOut_isNotToldWhileUnitsAreOnTheirWay(t *testing.T) {
	b := breakable(t)
	o := segmented.StockOptions{Buckets: 8}
	slow := openStock(t, session(t, b.proxy.Addr()), "shoe", o)
	quick := openStock(t, session(t, b.Addr()), "shoe", o)
	require.NoError(t, quick.Init(t.Context(), 1)) // in bucket 0
	hold := b.proxy.HoldReply(sha(t, b.Server, scripts.StockGive))
	done := make(chan error, 1)
	go func() {
		_, err := slow.Reserve(context.Background(), segmented.Order{ID: idsOf(3, 8, 1)[0], Qty: 1})
		done <- err
	}()
	<-hold.Held()
	v, err := quick.View(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, v.InTransit)
	require.Zero(t, v.Free+v.Unaccounted())
	sell(t, quick, idsOf(5, 8, 1)[0], 1)
	hold.Release()
	require.ErrorIs(t, <-done, segmented.ErrSoldOut)
	requireSoldOut(t, quick, 1)
}

// The last units are in baskets that are not decided yet, in another bucket than
// that of the order which could do with them.
func TestSoldOut_isNotToldWhileABasketIsUndecided(t *testing.T) {
	for _, given := range []bool{true, false} {
		t.Run(fmt.Sprint("the basket gets its units: ", given), func(t *testing.T) {
			b := breakable(t)
			o := segmented.StockOptions{Buckets: 4}
			open := func(addr, name string) *segmented.Stock { return openStock(t, session(t, addr), name, o) }
			shoe, tie := open(b.Addr(), "shoe"), open(b.Addr(), "tie")
			require.NoError(t, shoe.Init(t.Context(), 1))
			require.NoError(t, tie.Init(t.Context(), map[bool]int64{true: 1, false: 0}[given]))
			hf := session(t, b.proxy.Addr())
			// Refused or not, the basket ends with a settlement.
			hold := b.proxy.HoldRequest(sha(t, b.Server, scripts.StockSettle))
			basket := make(chan error, 1)
			go func() {
				_, err := segmented.Basket{ID: idsOf(1, 4, 1)[0], Lines: []segmented.Line{
					{Stock: openStock(t, hf, "shoe"), Qty: 1}, {Stock: openStock(t, hf, "tie"), Qty: 1},
				}}.Reserve(context.Background())
				basket <- err
			}()
			<-hold.Held()
			order := make(chan error, 1)
			go func() {
				_, err := shoe.Reserve(context.Background(), segmented.Order{ID: idsOf(3, 4, 1)[0], Qty: 1})
				order <- err
			}()
			select {
			case err := <-order:
				t.Fatal("told before the basket was decided", err)
			case <-time.After(300 * time.Millisecond):
			}
			began := time.Now()
			hold.Release()
			if given {
				require.NoError(t, <-basket)
				require.ErrorIs(t, <-order, segmented.ErrSoldOut)
			} else {
				require.ErrorIs(t, <-basket, segmented.ErrSoldOut)
				require.NoError(t, <-order)
			}
			require.Less(t, time.Since(began), 4*time.Second, "the decision wakes who waits, not the end of the basket's time")
			requireUnits(t, shoe, 0, 1, 0)
		})
	}
}

func TestSoldOut_isNotToldWhenAnOrderOfAnotherBucketIsOver(t *testing.T) {
	s := newStock(t, 4, segmented.StockOptions{Buckets: 4})
	other := another(t, s)
	for i := range 4 {
		_, err := s.Reserve(t.Context(), segmented.Order{ID: idsOf(i, 4, 1)[0], Qty: 1, Window: 400 * time.Millisecond})
		require.NoError(t, err)
	}
	ids := idsOf(2, 4, 5)[1:]
	_, err := other.Reserve(t.Context(), segmented.Order{ID: ids[0], Qty: 1})
	require.ErrorIs(t, err, segmented.ErrSoldOut, "their time is not over yet")
	time.Sleep(410 * time.Millisecond)
	for _, id := range ids {
		sell(t, other, id, 1)
	}
	requireSoldOut(t, s, 4)
}

// Everybody comes when all is gone.
func TestSoldOut_isCheapHoweverManyCome(t *testing.T) {
	for _, c := range []struct{ buckets, callers, losers int }{{1, 128, 10_000}, {16, 1024, 20_000}} {
		t.Run(fmt.Sprint(c.callers, " callers, ", c.buckets, " buckets"), func(t *testing.T) {
			srv := redistest.Run(t)
			s := openStock(t, session(t, srv.Addr()), "shoe", segmented.StockOptions{Buckets: c.buckets})
			require.NoError(t, s.Init(t.Context(), 1))
			sell(t, s, "a", 1)
			_, err := s.Reserve(t.Context(), segmented.Order{ID: "b", Qty: 1})
			require.ErrorIs(t, err, segmented.ErrSoldOut)
			before := srv.Calls(t)
			var wg sync.WaitGroup
			began := time.Now()
			for g := range c.callers {
				wg.Go(func() {
					for i := range c.losers / c.callers {
						if _, err := s.Reserve(context.Background(), segmented.Order{ID: fmt.Sprint(g, "-", i), Qty: 1}); !errors.Is(err, segmented.ErrSoldOut) {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			losers := float64(c.losers / c.callers * c.callers)
			each := float64(srv.Calls(t).Since(before).Scripts()) / losers
			t.Logf("%.0f losers in %v: %.4f commands each", losers, time.Since(began).Round(time.Millisecond), each)
			require.Less(t, each, 0.2)
		})
	}
}

// Every session remembers that it is sold out, and none keeps to it when units come
// back, in whatever bucket.
func TestSoldOut_isForgottenInEverySessionWhenUnitsComeBack(t *testing.T) {
	s := newStock(t, 8, segmented.StockOptions{Buckets: 8})
	sessions := []*segmented.Stock{s, another(t, s), another(t, s)}
	var sold []string
	for i := range 8 {
		sold = append(sold, idsOf(i, 8, 1)[0])
		sell(t, s, sold[i], 1)
	}
	n := 0
	for i := range 3 {
		for _, s := range sessions {
			_, err := s.Reserve(t.Context(), segmented.Order{ID: fmt.Sprint("late", n), Qty: 1})
			require.ErrorIs(t, err, segmented.ErrSoldOut)
			n++
		}
		_, err := s.Refund(t.Context(), segmented.Refund{ID: "f", Order: sold[2*i], Qty: 1})
		require.NoError(t, err)
		began := time.Now()
		got := 0
		for _, s := range sessions[i:] {
			_, err := s.Reserve(t.Context(), segmented.Order{ID: fmt.Sprint("again", n), Qty: 1})
			n++
			if err == nil {
				got++
			} else {
				require.ErrorIs(t, err, segmented.ErrSoldOut)
			}
			if got == 1 && s == sessions[i] {
				require.Less(t, time.Since(began), time.Second)
			}
		}
		require.Equal(t, 1, got)
	}
}

func TestWatch_ofSeveralBucketsTellsWhenAllAreEmptyAndWhenOneIsNot(t *testing.T) {
	s := newStock(t, 4, segmented.StockOptions{Buckets: 4})
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan int64, 100), make(chan error, 1)
	watcher := another(t, s)
	go func() { done <- watcher.Watch(ctx, func(free int64) { told <- free }) }()
	next := func() int64 {
		t.Helper()
		select {
		case free := <-told:
			return free
		case <-time.After(10 * time.Second):
			t.Fatal("not told")
			return 0
		}
	}
	require.EqualValues(t, 4, next())
	ids := idsOf(1, 4, 5) // three buckets are emptied into one, which is no news
	for _, id := range ids[:4] {
		sell(t, s, id, 1)
	}
	require.Zero(t, next())
	_, err := s.Refund(ctx, segmented.Refund{ID: "f", Order: ids[0], Qty: 1})
	require.NoError(t, err)
	require.EqualValues(t, 1, next())
	sell(t, s, idsOf(3, 4, 1)[0], 1)
	require.Zero(t, next())
	require.NoError(t, s.Add(ctx, segmented.Delivery{ID: "d", Qty: 8}))
	require.Positive(t, next())
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Empty(t, told)
}

func TestSweeper_bringsBackWhatIsOverUntilItsContextEnds(t *testing.T) {
	s := newStock(t, 8, segmented.StockOptions{Buckets: 4})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for _, s := range []*segmented.Stock{s, another(t, s)} {
		go func() { done <- s.Sweeper(ctx, 20*time.Millisecond) }()
	}
	for i := range 4 {
		_, err := s.Reserve(ctx, segmented.Order{ID: idsOf(i, 4, 1)[0], Qty: 2, Window: 50 * time.Millisecond})
		require.NoError(t, err)
	}
	requireAllFree := func() {
		t.Helper()
		redistest.Eventually(t, 10*time.Second, "the sweepers bring the units back", func() bool {
			v, err := s.View(t.Context())
			return err == nil && v.Free == 8 && v.Reserved == 0 && v.Unaccounted() == 0
		})
	}
	requireAllFree()
	cancel()
	for range 2 {
		require.ErrorIs(t, <-done, context.Canceled)
	}
	require.ErrorIs(t, s.Sweeper(t.Context(), 0), holdfast.ErrOption)
}

func TestSweeper_survivesAnOutageAndEndsWithTheSession(t *testing.T) {
	b := breakable(t)
	o := segmented.StockOptions{Buckets: 4}
	hf := session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 200 * time.Millisecond})
	sweeper := openStock(t, hf, "shoe", o)
	done := make(chan error, 1)
	go func() { done <- sweeper.Sweeper(context.Background(), 20*time.Millisecond) }() // before there is a stock
	s := openStock(t, session(t, b.Addr()), "shoe", o)
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, s.Init(t.Context(), 4))
	expire := func(id string) {
		t.Helper()
		_, err := s.Reserve(t.Context(), segmented.Order{ID: id, Qty: 1, Window: 20 * time.Millisecond})
		require.NoError(t, err)
		redistest.Eventually(t, 10*time.Second, "it is swept", func() bool {
			v, err := s.View(t.Context())
			return err == nil && v.Free == 4
		})
	}
	expire("a")
	b.proxy.Refuse()
	time.Sleep(500 * time.Millisecond) // longer than a call may take
	select {
	case err := <-done:
		t.Fatal("it ended with the outage", err)
	default:
	}
	b.proxy.Pass()
	expire("b")
	require.NoError(t, hf.Close(t.Context()))
	select {
	case err := <-done:
		require.ErrorIs(t, err, holdfast.ErrClosed)
	case <-time.After(10 * time.Second):
		t.Fatal("it sweeps on")
	}
}

func TestOrders_andExpiredOnesOfSeveralBuckets(t *testing.T) {
	s := newStock(t, 400, segmented.StockOptions{Buckets: 8})
	ctx := t.Context()
	want := map[string]segmented.State{}
	var wg sync.WaitGroup
	for part := range 4 {
		for i := part; i < 200; i += 4 {
			want[fmt.Sprint("o", i)] = []segmented.State{segmented.Reserved, segmented.Sold}[i%2]
		}
		wg.Go(func() {
			for i := part; i < 200; i += 4 {
				id := fmt.Sprint("o", i)
				_, err := s.Reserve(ctx, segmented.Order{ID: id, Qty: 1})
				if err == nil && i%2 == 1 {
					_, err = s.Confirm(ctx, id)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var over []string
	for i := range 24 {
		id := idsOf(i%8, 8, 3)[i/8]
		_, err := s.Reserve(ctx, segmented.Order{ID: "over-" + id, Qty: 1, Window: time.Duration(1+i) * time.Millisecond})
		require.NoError(t, err)
		over = append(over, "over-"+id)
		want["over-"+id] = segmented.Expired
	}
	time.Sleep(40 * time.Millisecond)
	got := map[string]segmented.State{}
	for r, err := range s.Orders(ctx) {
		require.NoError(t, err)
		got[r.Order.ID] = r.State
	}
	require.Equal(t, want, got)

	// As an outbox, some at a time.
	var told []string
	for len(told) < len(over) {
		list, err := s.Expired(ctx, 5)
		require.NoError(t, err)
		require.NotEmpty(t, list)
		require.LessOrEqual(t, len(list), 5)
		require.True(t, slices.IsSortedFunc(list, func(a, b segmented.Reservation) int { return a.Until.Compare(b.Until) }))
		var ids []string
		for _, r := range list {
			ids = append(ids, r.Order.ID)
		}
		require.NoError(t, s.Acknowledge(ctx, append(ids, "nobody")...))
		require.NoError(t, s.Acknowledge(ctx, ids[0]))
		told = append(told, ids...)
	}
	require.ElementsMatch(t, over, told, "each once")
	list, err := s.Expired(ctx, 5)
	require.NoError(t, err)
	require.Empty(t, list)
	requireUnits(t, s, 200, 100, 100)
}

// Somebody removes the stock and makes another of that name, with fewer buckets and
// a limit, while a process that knows the old one goes on.
func TestBuckets_aStockThatTookThePlaceOfAnotherIsUsedAsItIs(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	remake := func(o segmented.StockOptions, units int64) {
		t.Helper()
		srv.Do(t, "FLUSHALL")
		require.NoError(t, openStock(t, session(t, srv.Addr()), "shoe", o).Init(t.Context(), units))
	}
	for _, call := range []func() error{
		func() error {
			for r, err := range s.Orders(t.Context()) {
				if err != nil {
					return err
				}
				require.Fail(t, "there are no orders", "%+v", r)
			}
			return nil
		},
		func() error {
			list, err := s.Expired(t.Context(), 10)
			require.Empty(t, list)
			return err
		},
		func() error { return s.Acknowledge(t.Context(), "a", "b") },
		func() error { _, err := s.Sweep(t.Context()); return err },
		func() error { return s.Resize(t.Context(), 1) },
		func() error {
			v, err := s.View(t.Context())
			require.Len(t, v.Buckets, 3)
			return err
		},
		func() error { return s.Add(t.Context(), segmented.Delivery{ID: "e", Qty: 1}) },
	} {
		remake(segmented.StockOptions{Buckets: 8}, 8)
		sell(t, s, "a", 3)
		_, err := s.Reserve(t.Context(), segmented.Order{ID: "b", Qty: 1, Window: time.Millisecond})
		require.NoError(t, err)
		time.Sleep(2 * time.Millisecond)
		remake(segmented.StockOptions{Buckets: 3}, 5)
		require.NoError(t, call())
		v, err := s.View(t.Context())
		require.NoError(t, err)
		require.Zero(t, v.Sold+v.Reserved+v.Unaccounted(), "%+v", v)
	}
	remake(segmented.StockOptions{Buckets: 8}, 8)
	sell(t, s, "a", 3)
	remake(segmented.StockOptions{Buckets: 3, Limit: 1}, 5)
	_, err := s.Reserve(t.Context(), segmented.Order{ID: "ann/b", Buyer: "ann", Qty: 2})
	require.ErrorIs(t, err, segmented.ErrLimit)
}

// Units that were on their way when their stock was removed are no units of the one
// that took its place.
func TestBuckets_unitsOfARemovedStockAreNotBroughtIntoTheNext(t *testing.T) {
	b := breakable(t)
	o := segmented.StockOptions{Buckets: 4}
	slow := openStock(t, session(t, b.proxy.Addr()), "shoe", o)
	require.NoError(t, openStock(t, session(t, b.Addr()), "shoe", o).Init(t.Context(), 4))
	give := b.proxy.HoldReply(sha(t, b.Server, scripts.StockGive))
	done := make(chan error, 1)
	go func() {
		_, err := slow.Reserve(context.Background(), segmented.Order{ID: idsOf(1, 4, 1)[0], Qty: 3})
		done <- err
	}()
	<-give.Held()
	b.Do(t, "FLUSHALL")
	fresh := openStock(t, session(t, b.Addr()), "shoe", o)
	require.NoError(t, fresh.Init(t.Context(), 4))
	give.Release()
	require.NoError(t, <-done)
	requireUnits(t, fresh, 1, 3, 0)
}

// What one process says of where units rest holds for the sweepers of all.
func TestResize_isHeededByTheSweepersOfOtherProcesses(t *testing.T) {
	s := newStock(t, 16, segmented.StockOptions{Buckets: 8})
	early := another(t, s)
	requireUnits(t, early, 16, 0, 0)
	resting := func() (n int) {
		v, err := s.View(t.Context())
		require.NoError(t, err)
		require.Zero(t, v.Unaccounted()+v.InTransit)
		for _, b := range v.Buckets {
			if b.Free > 0 {
				n++
			}
		}
		return n
	}
	sweep := func(s *segmented.Stock) {
		t.Helper()
		_, err := s.Sweep(t.Context())
		require.NoError(t, err)
	}
	order := idsOf(5, 8, 1)[0]
	sell(t, s, order, 1)
	require.NoError(t, s.Resize(t.Context(), 2))
	require.Equal(t, 2, resting())
	late := another(t, s)
	_, err := late.Refund(t.Context(), segmented.Refund{ID: "f", Order: order, Qty: 1})
	require.NoError(t, err)
	require.Equal(t, 3, resting(), "an order stays where it is")
	sweep(early)
	require.Equal(t, 2, resting(), "its units do not")
	require.NoError(t, s.Resize(t.Context(), 8))
	require.Equal(t, 8, resting())
	sweep(late)
	require.Equal(t, 8, resting())
	require.ErrorIs(t, s.Resize(t.Context(), 0), holdfast.ErrOption)
	require.ErrorIs(t, s.Resize(t.Context(), 9), holdfast.ErrOption)
}

// All orders of a buyer are in one bucket, or the limit would be one for each.
func TestLimit_countsOrdersOfOneBuyerTogetherHoweverManyBucketsThereAre(t *testing.T) {
	s := newStock(t, 64, segmented.StockOptions{Buckets: 16, Limit: 2})
	sessions := []*segmented.Stock{s, another(t, s)}
	var wg sync.WaitGroup
	var got atomic.Int64
	for i := range 100 {
		buyer := fmt.Sprint("b", i%5)
		wg.Go(func() {
			order := segmented.Order{ID: segmented.OrderID(buyer, fmt.Sprint(i)), Buyer: buyer, Qty: 1}
			_, err := sessions[i/5%2].Reserve(context.Background(), order)
			switch {
			case err == nil:
				got.Add(1)
				_, err = sessions[i%2].Confirm(context.Background(), order.ID)
			case errors.Is(err, segmented.ErrLimit):
				err = nil
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 10, got.Load())
	// And all others have what is left, to the last unit.
	for i := range 27 {
		buyer := fmt.Sprint("other", i)
		order := segmented.Order{ID: segmented.OrderID(buyer, "1"), Buyer: buyer, Qty: 2}
		_, err := s.Reserve(t.Context(), order)
		require.NoError(t, err)
		_, err = s.Confirm(t.Context(), order.ID)
		require.NoError(t, err)
	}
	requireSoldOut(t, s, 64)
}
