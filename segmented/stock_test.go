package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

func openStock(t testing.TB, hf *holdfast.Session, name string, o ...segmented.StockOptions) *segmented.Stock {
	t.Helper()
	options := segmented.StockOptions{}
	if len(o) > 0 {
		options = o[0]
	}
	s, err := segmented.OpenStock(hf, name, options)
	require.NoError(t, err)
	return s
}

// newStock is a stock of so many units on the server of the package.
func newStock(t testing.TB, units int64, o ...segmented.StockOptions) *segmented.Stock {
	t.Helper()
	s := openStock(t, session(t, server.Addr()), key(t), o...)
	require.NoError(t, s.Init(t.Context(), units))
	return s
}

// another is the same stock in another process.
func another(t testing.TB, s *segmented.Stock, o ...segmented.StockOptions) *segmented.Stock {
	t.Helper()
	return openStock(t, session(t, server.Addr()), s.Name(), o...)
}

func reserve(t testing.TB, s *segmented.Stock, id string, qty int64) segmented.Reservation {
	t.Helper()
	r, err := s.Reserve(t.Context(), segmented.Order{ID: id, Qty: qty})
	require.NoError(t, err)
	return r
}

func sell(t testing.TB, s *segmented.Stock, id string, qty int64) segmented.Reservation {
	t.Helper()
	reserve(t, s, id, qty)
	r, err := s.Confirm(t.Context(), id)
	require.NoError(t, err)
	return r
}

// requireUnits checks where the units are, and that none is missing.
func requireUnits(t testing.TB, s *segmented.Stock, free, reserved, sold int64) {
	t.Helper()
	v, err := s.View(t.Context())
	require.NoError(t, err)
	require.Zero(t, v.Unaccounted(), "%+v", v)
	require.Equal(t, [3]int64{free, reserved, sold}, [3]int64{v.Free, v.Reserved, v.Sold}, "free, reserved, sold")
}

// left is what an error says is left.
func left(t testing.TB, err error) int64 {
	t.Helper()
	var e *segmented.StockError
	require.ErrorAs(t, err, &e)
	return e.Left
}

func TestOpenStock_badOptionsAreRefusedAtTheDoor(t *testing.T) {
	hf := session(t, server.Addr())
	for _, name := range []string{"", "a{b}", "a{", "}", strings.Repeat("x", 513)} {
		_, err := segmented.OpenStock(hf, name, segmented.StockOptions{})
		require.ErrorIs(t, err, holdfast.ErrName, "%q", name)
	}
	for _, o := range []segmented.StockOptions{
		{Limit: -1}, {Window: -1}, {Window: 1000 * 1000 * time.Hour}, {Remember: time.Minute}, {Remember: -1},
	} {
		_, err := segmented.OpenStock(hf, "a", o)
		require.ErrorIs(t, err, holdfast.ErrOption, "%+v", o)
	}
	_, err := segmented.OpenStock(nil, "a", segmented.StockOptions{})
	require.ErrorIs(t, err, holdfast.ErrOption)
	require.NoError(t, hf.Close(t.Context()))
	_, err = segmented.OpenStock(hf, "a", segmented.StockOptions{})
	require.ErrorIs(t, err, holdfast.ErrClosed)
}

func TestStock_badRequestsAreRefusedAtTheDoor(t *testing.T) {
	s := newStock(t, 10)
	ctx := t.Context()
	for _, o := range []segmented.Order{
		{Qty: 1}, {ID: strings.Repeat("x", 513), Qty: 1}, {ID: "o", Qty: 1, Buyer: strings.Repeat("x", 513)},
	} {
		_, err := s.Reserve(ctx, o)
		require.ErrorIs(t, err, holdfast.ErrName)
	}
	for _, o := range []segmented.Order{{ID: "o"}, {ID: "o", Qty: -1}, {ID: "o", Qty: 2e9}, {ID: "o", Qty: 1, Window: -1}} {
		_, err := s.Reserve(ctx, o)
		require.ErrorIs(t, err, holdfast.ErrOption)
	}
	_, err := s.Confirm(ctx, "")
	require.ErrorIs(t, err, holdfast.ErrName)
	_, err = s.Get(ctx, "")
	require.ErrorIs(t, err, holdfast.ErrName)
	_, err = s.Extend(ctx, "o", 0)
	require.ErrorIs(t, err, holdfast.ErrOption)
	_, err = s.Refund(ctx, segmented.Refund{Order: "o", Qty: 1})
	require.ErrorIs(t, err, holdfast.ErrName)
	_, err = s.Refund(ctx, segmented.Refund{ID: "r", Order: "o"})
	require.ErrorIs(t, err, holdfast.ErrOption)
	require.ErrorIs(t, s.Add(ctx, segmented.Delivery{Qty: 1}), holdfast.ErrName)
	require.ErrorIs(t, s.Add(ctx, segmented.Delivery{ID: "d"}), holdfast.ErrOption)
	_, err = s.Expired(ctx, 0)
	require.ErrorIs(t, err, holdfast.ErrOption)
	require.ErrorIs(t, s.Init(ctx, -1), holdfast.ErrOption)
	requireUnits(t, s, 10, 0, 0)
}

func TestStock_theLifeOfAnOrder(t *testing.T) {
	s := newStock(t, 10)
	ctx := t.Context()
	r, err := s.Reserve(ctx, segmented.Order{ID: "a", Buyer: "ann", Qty: 3, Window: time.Minute})
	require.NoError(t, err)
	require.Equal(t, segmented.Reserved, r.State)
	require.Equal(t, segmented.Order{ID: "a", Buyer: "ann", Qty: 3}, r.Order)
	require.Equal(t, time.Minute, r.Left)
	require.Equal(t, r.At.Add(time.Minute), r.Until)
	require.WithinDuration(t, time.Now(), r.At, 10*time.Second)
	require.False(t, r.Replayed)
	requireUnits(t, s, 7, 3, 0)

	r, err = s.Extend(ctx, "a", time.Hour)
	require.NoError(t, err)
	require.Equal(t, time.Hour, r.Left)
	r, err = s.Extend(ctx, "a", time.Minute)
	require.NoError(t, err)
	require.Greater(t, r.Left, 59*time.Minute, "it is never shortened")

	r, err = another(t, s).Confirm(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, segmented.Sold, r.State)
	require.EqualValues(t, 3, r.Order.Qty)
	require.Equal(t, "ann", r.Order.Buyer)
	requireUnits(t, s, 7, 0, 3)
	_, err = s.Extend(ctx, "a", time.Hour)
	require.ErrorIs(t, err, segmented.ErrState)
	require.ErrorContains(t, err, "but sold")

	r, err = s.Refund(ctx, segmented.Refund{ID: "f", Order: "a", Qty: 2})
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Refunded)
	requireUnits(t, s, 9, 0, 1)
	_, err = s.Refund(ctx, segmented.Refund{ID: "g", Order: "a", Qty: 2})
	require.ErrorIs(t, err, segmented.ErrConflict)
	require.EqualValues(t, 1, left(t, err))
	r, err = s.Get(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, segmented.Sold, r.State)
	require.EqualValues(t, 2, r.Refunded)

	reserve(t, s, "b", 9)
	_, err = s.Reserve(ctx, segmented.Order{ID: "c", Qty: 1})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	require.Zero(t, left(t, err))
	r, err = s.Cancel(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, segmented.Cancelled, r.State)
	require.Zero(t, r.Left)
	_, err = s.Confirm(ctx, "b")
	require.ErrorIs(t, err, segmented.ErrState)
	_, err = s.Reserve(ctx, segmented.Order{ID: "b", Qty: 9})
	require.ErrorIs(t, err, segmented.ErrState, "a cancelled order stays cancelled")
	_, err = s.Reserve(ctx, segmented.Order{ID: "c", Qty: 10})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	require.EqualValues(t, 9, left(t, err))
	requireUnits(t, s, 9, 0, 1)
}

func TestStock_aStockThatIsNotOpenSaysSo(t *testing.T) {
	hf := session(t, server.Addr())
	s := openStock(t, hf, key(t))
	_, err := s.Reserve(t.Context(), segmented.Order{ID: "o", Qty: 1})
	require.ErrorIs(t, err, segmented.ErrNotOpen)
	_, err = s.View(t.Context())
	require.ErrorIs(t, err, segmented.ErrNotOpen)
	require.NoError(t, s.Init(t.Context(), 1))
	reserve(t, s, "o", 1)
}

// Loading the stock twice.
func TestInit_isOnce(t *testing.T) {
	s := newStock(t, 100)
	for i := range 40 {
		sell(t, s, fmt.Sprint(i), 1)
	}
	var wg sync.WaitGroup
	for range 5 {
		other := another(t, s)
		wg.Go(func() {
			if err := other.Init(context.Background(), 100); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	requireUnits(t, s, 60, 0, 40)
	err := another(t, s).Init(t.Context(), 50)
	require.ErrorIs(t, err, segmented.ErrConflict)
	require.EqualValues(t, 100, left(t, err))
	for i := range 5 {
		other := another(t, s)
		require.NoError(t, other.Add(t.Context(), segmented.Delivery{ID: "d", Qty: 10}), i)
	}
	requireUnits(t, s, 70, 0, 40)
	err = s.Add(t.Context(), segmented.Delivery{ID: "d", Qty: 11})
	require.ErrorIs(t, err, segmented.ErrConflict)
	require.EqualValues(t, 10, left(t, err))
	requireUnits(t, s, 70, 0, 40)
}

func TestInit_whatWasInterruptedIsFinished(t *testing.T) {
	for _, script := range []*scripts.Script{scripts.StockInit, scripts.StockBucket, scripts.StockOpen} {
		t.Run(script.Name(), func(t *testing.T) {
			b := breakable(t)
			first := openStock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 300 * time.Millisecond}), "shoe")
			b.proxy.Answer(sha(t, b.Server, script), "-LOADING no\r\n", -1) // it never gets there
			err := first.Init(t.Context(), 10)
			if !errors.Is(err, holdfast.ErrUnknown) { // the last of its tries may have been cut off
				require.ErrorIs(t, err, holdfast.ErrUnavailable)
			}
			second := openStock(t, session(t, b.Addr()), "shoe")
			_, err = second.Reserve(t.Context(), segmented.Order{ID: "o", Qty: 1})
			require.ErrorIs(t, err, segmented.ErrNotOpen)
			require.NoError(t, second.Init(t.Context(), 10))
			reserve(t, second, "o", 1)
			requireUnits(t, second, 9, 1, 0)
		})
	}
}

func TestInit_lostRepliesChangeNothing(t *testing.T) {
	for _, script := range []*scripts.Script{scripts.StockInit, scripts.StockBucket, scripts.StockOpen} {
		b := breakable(t)
		s := openStock(t, session(t, b.proxy.Addr()), "shoe")
		trap := b.proxy.DropReply(sha(t, b.Server, script), 1)
		require.NoError(t, s.Init(t.Context(), 10), script.Name())
		<-trap.Done()
		requireUnits(t, s, 10, 0, 0)
	}
}

func TestInit_theLimitIsRecorded(t *testing.T) {
	s := newStock(t, 10, segmented.StockOptions{Limit: 2})
	other := another(t, s, segmented.StockOptions{Limit: 3})
	_, err := other.Reserve(t.Context(), segmented.Order{ID: "b/o", Buyer: "b", Qty: 1})
	require.ErrorIs(t, err, holdfast.ErrOption)
	require.ErrorIs(t, other.Init(t.Context(), 10), holdfast.ErrOption)
	silent := another(t, s)
	require.NoError(t, silent.Init(t.Context(), 10))
	_, err = silent.Reserve(t.Context(), segmented.Order{ID: "b/o", Buyer: "b", Qty: 3})
	require.ErrorIs(t, err, segmented.ErrLimit)
	require.EqualValues(t, 2, left(t, err))
	_, err = silent.Reserve(t.Context(), segmented.Order{ID: "o", Qty: 1})
	require.ErrorIs(t, err, holdfast.ErrOption, "there is a limit and no buyer")
	for _, id := range []string{"o", "b", "b/", "b/o/1", "a/o", "bb/o", "/b/o"} {
		_, err = silent.Reserve(t.Context(), segmented.Order{ID: id, Buyer: "b", Qty: 1})
		require.ErrorIs(t, err, holdfast.ErrName, "nobody would find %q by its id", id)
	}
	for _, buyer := range []string{"b", "a/b", "/"} {
		id := segmented.OrderID(buyer, "o")
		_, err = silent.Reserve(t.Context(), segmented.Order{ID: id, Buyer: buyer, Qty: 1})
		require.NoError(t, err)
		_, err = silent.Confirm(t.Context(), id)
		require.NoError(t, err)
	}
}

// A bucket that is lost is not made anew: that would sell again what was sold.
func TestStock_aMissingBucketIsAnError(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	sell(t, s, "a", 4)
	srv.Do(t, "DEL", "holdfast_stock_units:{shoe:0}")
	for _, s := range []*segmented.Stock{s, openStock(t, session(t, srv.Addr()), "shoe")} {
		require.NoError(t, s.Init(t.Context(), 10))
		_, err := s.Reserve(t.Context(), segmented.Order{ID: "b", Qty: 1})
		require.ErrorIs(t, err, segmented.ErrDamaged)
		_, err = s.Confirm(t.Context(), "a")
		require.ErrorIs(t, err, segmented.ErrDamaged)
		_, err = s.View(t.Context())
		require.ErrorIs(t, err, segmented.ErrDamaged)
	}
	require.Equal(t, "0", srv.Do(t, "EXISTS", "holdfast_stock_units:{shoe:0}"))

	// The record is lost, and the bucket is not.
	srv.Do(t, "FLUSHALL")
	require.NoError(t, s.Init(t.Context(), 10))
	srv.Do(t, "DEL", "holdfast_stock:{shoe}")
	require.ErrorIs(t, s.Init(t.Context(), 10), segmented.ErrDamaged)
	requireBucket := srv.Do(t, "HGET", "holdfast_stock_units:{shoe:0}", "free")
	require.Equal(t, "10", requireBucket)
}

func TestStock_anotherStockOfTheNameIsNoticed(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	sell(t, s, "a", 4)
	srv.Do(t, "FLUSHALL")
	require.NoError(t, openStock(t, session(t, srv.Addr()), "shoe", segmented.StockOptions{Limit: 1}).Init(t.Context(), 5))
	_, err := s.Confirm(t.Context(), "a")
	require.ErrorIs(t, err, segmented.ErrUnknownOrder)
	_, err = s.Reserve(t.Context(), segmented.Order{ID: "ann/b", Buyer: "ann", Qty: 2})
	require.ErrorIs(t, err, segmented.ErrLimit, "it goes by the new record")
	requireUnits(t, s, 5, 0, 0)
}

// Stock that is stranded: sold out is told only when nothing is left.
func TestReserve_sellsToTheLastUnitAndNoMore(t *testing.T) {
	for _, buyers := range []int{1, 50} {
		t.Run(fmt.Sprint(buyers), func(t *testing.T) {
			s := newStock(t, 10)
			var got, soldOut atomic.Int64
			var wg sync.WaitGroup
			for b := range buyers {
				wg.Go(func() {
					for i := range 11 {
						_, err := s.Reserve(context.Background(), segmented.Order{ID: fmt.Sprint(b, "-", i), Qty: 1})
						switch {
						case err == nil:
							got.Add(1)
						case errors.Is(err, segmented.ErrSoldOut):
							soldOut.Add(1)
						default:
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, 10, got.Load())
			require.EqualValues(t, 11*buyers-10, soldOut.Load())
			requireUnits(t, s, 0, 10, 0)
		})
	}
}

// A reply is lost, and the caller repeats the order: here, and in another process.
func TestReserve_aLostReplyTakesNothingTwice(t *testing.T) {
	b := breakable(t)
	s := openStock(t, session(t, b.proxy.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	trap := b.proxy.DropReply(sha(t, b.Server, scripts.StockReserve), 1)
	first := reserve(t, s, "o1", 1)
	<-trap.Done()
	require.True(t, first.Replayed)
	for _, other := range []*segmented.Stock{s, s, openStock(t, session(t, b.Addr()), "shoe")} {
		r := reserve(t, other, "o1", 1)
		require.True(t, r.Replayed)
		require.Equal(t, first.Until, r.Until, "it is the first reservation")
	}
	requireUnits(t, s, 9, 1, 0)
	for _, o := range []segmented.Order{{ID: "o1", Qty: 2}, {ID: "o1", Qty: 1, Buyer: "ann"}} {
		_, err := s.Reserve(t.Context(), o)
		require.ErrorIs(t, err, segmented.ErrConflict)
		require.EqualValues(t, 1, left(t, err))
	}
	requireUnits(t, s, 9, 1, 0)
}

func TestStock_everyLostReplyIsHarmless(t *testing.T) {
	b := breakable(t)
	s := openStock(t, session(t, b.proxy.Addr()), "shoe", segmented.StockOptions{Limit: 9})
	require.NoError(t, s.Init(t.Context(), 10))
	ctx := t.Context()
	lose := func(script *scripts.Script, call func() error) {
		t.Helper()
		trap := b.proxy.DropReply(sha(t, b.Server, script), 1)
		require.NoError(t, call(), script.Name())
		<-trap.Done()
	}
	order := segmented.Order{ID: "ann/a", Buyer: "ann", Qty: 3}
	lose(scripts.StockReserve, func() error { _, err := s.Reserve(ctx, order); return err })
	lose(scripts.StockExtend, func() error { _, err := s.Extend(ctx, "ann/a", time.Hour); return err })
	lose(scripts.StockConfirm, func() error { _, err := s.Confirm(ctx, "ann/a"); return err })
	lose(scripts.StockRefund, func() error { _, err := s.Refund(ctx, segmented.Refund{ID: "f", Order: "ann/a", Qty: 1}); return err })
	lose(scripts.StockAdd, func() error { return s.Add(ctx, segmented.Delivery{ID: "d", Qty: 5}) })
	_, err := s.Reserve(ctx, segmented.Order{ID: "ann/b", Buyer: "ann", Qty: 1})
	require.NoError(t, err)
	lose(scripts.StockCancel, func() error { _, err := s.Cancel(ctx, "ann/b"); return err })
	lose(scripts.StockGet, func() error { _, err := s.Get(ctx, "ann/b"); return err })
	lose(scripts.StockView, func() error { _, err := s.View(ctx); return err })
	lose(scripts.StockSweep, func() error { _, err := s.Sweep(ctx); return err })
	basket := segmented.Basket{ID: "ann/c", Buyer: "ann", Lines: []segmented.Line{{Stock: s, Qty: 1}}}
	lose(scripts.StockSettle, func() error { _, err := basket.Reserve(ctx); return err })
	requireUnits(t, s, 12, 1, 2)
	_, err = s.Reserve(ctx, segmented.Order{ID: "ann/e", Buyer: "ann", Qty: 7})
	require.ErrorIs(t, err, segmented.ErrLimit)
	require.EqualValues(t, 6, left(t, err), "the buyer has 2 and 1")
}

func TestStock_anUnansweredCallIsUnknownOrUnavailable(t *testing.T) {
	b := breakable(t)
	s := openStock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: time.Second}), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	reserve(t, s, "a", 1)

	hold := b.proxy.HoldReply(sha(t, b.Server, scripts.StockConfirm))
	began := time.Now()
	_, err := s.Confirm(t.Context(), "a")
	require.ErrorIs(t, err, holdfast.ErrUnknown)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "it was not the caller's deadline")
	require.Less(t, time.Since(began), 5*time.Second)
	hold.Release()
	r, err := s.Confirm(within(t, 5*time.Second), "a")
	require.NoError(t, err)
	require.True(t, r.Replayed)

	hold = b.proxy.HoldReply(sha(t, b.Server, scripts.StockReserve))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-hold.Held(); cancel() }()
	_, err = s.Reserve(ctx, segmented.Order{ID: "b", Qty: 1})
	require.ErrorIs(t, err, holdfast.ErrUnknown)
	require.ErrorIs(t, err, context.Canceled)
	hold.Release()
	_, err = s.Reserve(ctx, segmented.Order{ID: "c", Qty: 1})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, holdfast.ErrUnavailable, "it was not sent")

	// What is refused is not sent again in the last eighth of the time: long enough for
	// an answer.
	s = openStock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 4 * time.Second}), "shoe")
	b.proxy.Answer("EVALSHA", "-LOADING no\r\n", -1)
	_, err = s.Reserve(t.Context(), segmented.Order{ID: "d", Qty: 1})
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.NotErrorIs(t, err, holdfast.ErrUnknown)
	require.ErrorContains(t, err, "LOADING")
	_, err = s.View(within(t, 50*time.Millisecond))
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, holdfast.ErrUnknown, "it changes nothing")
}

func TestStock_aRefusalIsTriedAgainWithinTheCallersTime(t *testing.T) {
	b := breakable(t)
	s := openStock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: 30 * time.Second}), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	b.proxy.Answer("EVALSHA", "-LOADING no\r\n", 2)
	_, err := s.Reserve(within(t, 3*time.Second), segmented.Order{ID: "a", Qty: 1}) // less than the last eighth of the session's
	require.NoError(t, err)
}

func TestStock_aClosedSessionRefuses(t *testing.T) {
	hf := session(t, server.Addr())
	s := openStock(t, hf, key(t))
	require.NoError(t, s.Init(t.Context(), 10))
	require.NoError(t, hf.Close(t.Context()))
	_, err := s.Reserve(t.Context(), segmented.Order{ID: "a", Qty: 1})
	require.ErrorIs(t, err, holdfast.ErrClosed)
	require.ErrorIs(t, s.Init(t.Context(), 10), holdfast.ErrClosed)
	_, err = s.View(t.Context())
	require.ErrorIs(t, err, holdfast.ErrClosed)
}

// One impatient buyer presses a hundred times.
func TestLimit_anImpatientBuyerHasOneUnit(t *testing.T) {
	s := newStock(t, 100, segmented.StockOptions{Limit: 1})
	other := another(t, s)
	var got, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			_, err := []*segmented.Stock{s, other}[i%2].Reserve(context.Background(), segmented.Order{ID: fmt.Sprint("u/", i), Buyer: "u", Qty: 1})
			switch {
			case err == nil:
				got.Add(1)
			case errors.Is(err, segmented.ErrLimit):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, got.Load())
	require.EqualValues(t, 99, refused.Load())
	for i := range 99 {
		_, err := s.Reserve(t.Context(), segmented.Order{ID: fmt.Sprint("v", i, "/1"), Buyer: fmt.Sprint("v", i), Qty: 1})
		require.NoError(t, err)
	}
	requireUnits(t, s, 0, 100, 0)
}

func TestLimit_countsWhatABuyerHas(t *testing.T) {
	s := newStock(t, 100, segmented.StockOptions{Limit: 3})
	ctx := t.Context()
	take := func(id string, qty int64, window time.Duration) error {
		_, err := s.Reserve(ctx, segmented.Order{ID: id, Buyer: "ann", Qty: qty, Window: window})
		return err
	}
	require.NoError(t, take("ann/a", 2, time.Minute))
	require.ErrorIs(t, take("ann/b", 2, time.Minute), segmented.ErrLimit)
	require.NoError(t, take("ann/c", 1, time.Millisecond), "which is over at once")
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, take("ann/d", 1, time.Minute), "what is over does not count")
	_, err := s.Cancel(ctx, "ann/d")
	require.NoError(t, err)
	_, err = s.Confirm(ctx, "ann/a")
	require.NoError(t, err)
	require.ErrorIs(t, take("ann/e", 2, time.Minute), segmented.ErrLimit, "what is sold does")
	_, err = s.Refund(ctx, segmented.Refund{ID: "f", Order: "ann/a", Qty: 1})
	require.NoError(t, err)
	require.NoError(t, take("ann/e", 2, time.Minute), "and what is refunded does not")
	require.ErrorIs(t, take("ann/g", 1, time.Minute), segmented.ErrLimit)
}

// Refunds that come twice, from strangers, or in place of a cancel.
func TestCancel_andRefundGiveBackOnce(t *testing.T) {
	b := breakable(t)
	s := openStock(t, session(t, b.proxy.Addr()), "shoe")
	other := openStock(t, session(t, b.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	ctx := t.Context()
	reserve(t, s, "o1", 1)
	trap := b.proxy.DropReply(sha(t, b.Server, scripts.StockCancel), 1)
	var first atomic.Int64
	var wg sync.WaitGroup
	for _, s := range []*segmented.Stock{s, other, s, other} {
		wg.Go(func() {
			r, err := s.Cancel(context.Background(), "o1")
			if err != nil || r.State != segmented.Cancelled {
				t.Error(r, err)
			}
			if !r.Replayed {
				first.Add(1)
			}
		})
	}
	wg.Wait()
	<-trap.Done()
	require.LessOrEqual(t, first.Load(), int64(1))
	requireUnits(t, s, 10, 0, 0)
	r, err := s.Cancel(ctx, "o1")
	require.NoError(t, err)
	require.True(t, r.Replayed, "already cancelled")

	for range 2 {
		_, err = s.Cancel(ctx, "nobody")
		require.ErrorIs(t, err, segmented.ErrUnknownOrder)
		_, err = s.Refund(ctx, segmented.Refund{ID: "f0", Order: "nobody2", Qty: 1})
		require.ErrorIs(t, err, segmented.ErrUnknownOrder)
	}
	requireUnits(t, s, 10, 0, 0)

	sell(t, s, "o2", 3)
	_, err = s.Cancel(ctx, "o2")
	require.ErrorIs(t, err, segmented.ErrState, "that is for Refund")
	require.EqualValues(t, 3, left(t, err))
	requireUnits(t, s, 7, 0, 3)
	for _, s := range []*segmented.Stock{s, other, s, other} {
		wg.Go(func() {
			if _, err := s.Refund(context.Background(), segmented.Refund{ID: "f1", Order: "o2", Qty: 2}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	requireUnits(t, s, 9, 0, 1)
	for _, f := range []segmented.Refund{{ID: "f1", Order: "o2", Qty: 1}, {ID: "f2", Order: "o2", Qty: 2}} {
		_, err = s.Refund(ctx, f)
		require.ErrorIs(t, err, segmented.ErrConflict)
	}
	_, err = s.Refund(ctx, segmented.Refund{ID: "f1", Order: "o1", Qty: 2})
	require.ErrorIs(t, err, segmented.ErrState, "a refund is one of its order, and that one was cancelled")
	reserve(t, s, "o3", 1)
	_, err = s.Refund(ctx, segmented.Refund{ID: "f3", Order: "o3", Qty: 1})
	require.ErrorIs(t, err, segmented.ErrState, "that is for Cancel")
	requireUnits(t, s, 8, 1, 1)
}

// Cancel overtakes the reservation, or gives up on it.
func TestCancel_beforeTheReservationComes(t *testing.T) {
	b := breakable(t)
	s := openStock(t, session(t, b.proxy.Addr(), holdfast.SessionOptions{Timeout: time.Second}), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	hold := b.proxy.HoldRequest(sha(t, b.Server, scripts.StockReserve))
	_, err := s.Reserve(t.Context(), segmented.Order{ID: "a", Qty: 1})
	require.ErrorIs(t, err, holdfast.ErrUnknown)
	<-hold.Held()
	_, err = openStock(t, session(t, b.Addr()), "shoe").Cancel(t.Context(), "a")
	require.ErrorIs(t, err, segmented.ErrUnknownOrder)
	before := b.Calls(t).Scripts()
	hold.Release() // and now it comes
	redistest.Eventually(t, 20*time.Second, "the late copy arrives", func() bool { return b.Calls(t).Scripts() > before })
	requireUnits(t, openStock(t, session(t, b.Addr()), "shoe"), 10, 0, 0)
	_, err = openStock(t, session(t, b.Addr()), "shoe").Reserve(t.Context(), segmented.Order{ID: "a", Qty: 1})
	require.ErrorIs(t, err, segmented.ErrState)
}

// The payment comes when the time of the reservation is over.
func TestConfirm_afterTheEndTakesNothing(t *testing.T) {
	s := newStock(t, 1)
	ctx := t.Context()
	_, err := s.Reserve(ctx, segmented.Order{ID: "a", Qty: 1, Window: 1500 * time.Millisecond})
	require.NoError(t, err)
	_, err = s.Reserve(ctx, segmented.Order{ID: "b", Qty: 1})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	time.Sleep(1510 * time.Millisecond)
	reserve(t, s, "b", 1)
	r, err := s.Confirm(ctx, "a")
	require.ErrorIs(t, err, segmented.ErrExpired)
	require.Equal(t, segmented.Expired, r.State)
	_, err = s.Extend(ctx, "a", time.Minute)
	require.ErrorIs(t, err, segmented.ErrExpired)
	_, err = s.Reserve(ctx, segmented.Order{ID: "a", Qty: 1})
	require.ErrorIs(t, err, segmented.ErrExpired)
	r, err = s.Cancel(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, segmented.Expired, r.State)
	_, err = s.Confirm(ctx, "b")
	require.NoError(t, err)
	requireUnits(t, s, 0, 0, 1)
}

func TestConfirm_racesWithTheEnd(t *testing.T) {
	s, other := newStock(t, 1), (*segmented.Stock)(nil)
	other = another(t, s)
	confirmed, taken := 0, 0
	for round := range 300 {
		a, b := fmt.Sprint("a", round), fmt.Sprint("b", round)
		const window = 15 * time.Millisecond
		began := time.Now()
		_, err := s.Reserve(t.Context(), segmented.Order{ID: a, Qty: 1, Window: window})
		require.NoError(t, err)
		time.Sleep(time.Until(began.Add(window + time.Duration(round%9-4)*500*time.Microsecond)))
		var sold, got bool
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := s.Confirm(context.Background(), a)
			if sold = err == nil; err != nil && !errors.Is(err, segmented.ErrExpired) {
				t.Error(err)
			}
		})
		wg.Go(func() {
			_, err := other.Reserve(context.Background(), segmented.Order{ID: b, Qty: 1})
			if got = err == nil; err != nil && !errors.Is(err, segmented.ErrSoldOut) {
				t.Error(err)
			}
		})
		wg.Wait()
		require.False(t, sold && got, "round %d: one unit for two", round)
		if sold {
			confirmed++
			_, err := s.Refund(t.Context(), segmented.Refund{ID: a, Order: a, Qty: 1})
			require.NoError(t, err)
		}
		if got {
			taken++
			_, err := other.Cancel(t.Context(), b)
			require.NoError(t, err)
		}
	}
	t.Logf("300 rounds: %d confirmed, %d taken by another", confirmed, taken)
	v, err := s.View(t.Context())
	require.NoError(t, err)
	require.Zero(t, v.Unaccounted())
	require.Zero(t, v.Sold)
}

// killedBuyer reserves three units, says so, and waits to be killed.
func killedBuyer() {
	s := childStock()
	for i := range 3 {
		if _, err := s.Reserve(context.Background(), segmented.Order{ID: fmt.Sprint("k", i), Qty: 1, Window: 1500 * time.Millisecond}); err != nil {
			panic(err)
		}
	}
	redistest.Say("reserved")
	select {}
}

// Crash between the reservation and the order.
func TestExpiry_unitsOfAKilledBuyerComeBackOnce(t *testing.T) {
	s := newStock(t, 10)
	child := redistest.Child(t, "killed buyer", "ADDR="+server.Addr(), "NAME="+s.Name())
	child.Line("reserved", 20*time.Second)
	began := time.Now()
	child.Kill()
	requireUnits(t, s, 7, 3, 0)
	var wg sync.WaitGroup
	var expired atomic.Int64
	for range 2 { // two reapers
		reaper := another(t, s)
		wg.Go(func() {
			for beyond := 0; beyond < 20 && time.Since(began) < 30*time.Second; {
				if expired.Load() >= 3 {
					beyond++ // and on, for a while
				}
				n, err := reaper.Sweep(context.Background())
				if err != nil {
					t.Error(err)
				}
				expired.Add(int64(n))
			}
		})
	}
	wg.Wait()
	t.Logf("back after %v", time.Since(began))
	require.EqualValues(t, 3, expired.Load(), "not 6")
	requireUnits(t, s, 10, 0, 0)
	list, err := s.Expired(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, list, 3)
	for _, r := range list {
		require.Equal(t, segmented.Expired, r.State)
		require.EqualValues(t, 1, r.Order.Qty)
	}
}

func TestOrders_readsAllWhateverTheirState(t *testing.T) {
	s := newStock(t, 1000)
	ctx := t.Context()
	want := map[string]segmented.State{}
	for i := range 300 {
		id := fmt.Sprint("o", i)
		reserve(t, s, id, 1)
		want[id] = segmented.Reserved
		switch i % 3 {
		case 0:
			_, err := s.Confirm(ctx, id)
			require.NoError(t, err)
			want[id] = segmented.Sold
		case 1:
			_, err := s.Cancel(ctx, id)
			require.NoError(t, err)
			want[id] = segmented.Cancelled
		}
	}
	require.NoError(t, s.Add(ctx, segmented.Delivery{ID: "d", Qty: 1}))
	_, err := s.Reserve(ctx, segmented.Order{ID: "over", Qty: 1, Window: time.Millisecond})
	require.NoError(t, err)
	want["over"] = segmented.Expired
	_, err = s.Cancel(ctx, "never came")
	require.ErrorIs(t, err, segmented.ErrUnknownOrder)
	time.Sleep(5 * time.Millisecond)
	got := map[string]segmented.State{}
	for r, err := range s.Orders(ctx) {
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Order.Qty)
		got[r.Order.ID] = r.State
	}
	require.Equal(t, want, got)
	for _, err := range s.Orders(ctx) {
		require.NoError(t, err)
		break // leaving early is fine
	}
}

func TestExpired_isAnOutbox(t *testing.T) {
	s := newStock(t, 10)
	ctx := t.Context()
	for i := range 5 {
		_, err := s.Reserve(ctx, segmented.Order{ID: fmt.Sprint(i), Buyer: "ann", Qty: 1, Window: time.Duration(1+i) * time.Millisecond})
		require.NoError(t, err)
	}
	reserve(t, s, "lives", 1)
	time.Sleep(20 * time.Millisecond)
	for range 2 { // what is not acknowledged is listed again
		list, err := s.Expired(ctx, 3)
		require.NoError(t, err)
		require.Len(t, list, 3)
		require.Equal(t, "ann", list[0].Order.Buyer)
	}
	require.NoError(t, s.Acknowledge(ctx, "0", "1", "2", "lives", "nobody"))
	require.NoError(t, s.Acknowledge(ctx, "0"))
	list, err := s.Expired(ctx, 3)
	require.NoError(t, err)
	require.Len(t, list, 2)
	v, err := s.View(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, v.Unacknowledged)
	require.EqualValues(t, 1, v.Live)
	require.Zero(t, v.Due)
	requireUnits(t, s, 9, 1, 0)
}

// A thousand reservations are over: the next order finds their units, whatever the
// bound of one script.
func TestReserve_sweepsUntilItIsSatisfied(t *testing.T) {
	s := newStock(t, 1000)
	var wg sync.WaitGroup
	for part := range 20 {
		wg.Go(func() {
			for i := part; i < 1000; i += 20 {
				if _, err := s.Reserve(context.Background(), segmented.Order{ID: fmt.Sprint(i), Qty: 1, Window: 300 * time.Millisecond}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(310 * time.Millisecond)
	reserve(t, s, "all", 1000)
	requireUnits(t, s, 0, 1000, 0)
}

// "Sold out" stays although units came back.
func TestSoldOut_isForgottenWhenUnitsComeBack(t *testing.T) {
	s := newStock(t, 1)
	other := another(t, s)
	sell(t, s, "a", 1)
	for range 3 {
		for _, s := range []*segmented.Stock{s, other} {
			_, err := s.Reserve(t.Context(), segmented.Order{ID: "b", Qty: 1})
			require.ErrorIs(t, err, segmented.ErrSoldOut)
		}
	}
	_, err := s.Refund(t.Context(), segmented.Refund{ID: "f", Order: "a", Qty: 1})
	require.NoError(t, err)
	got := 0
	for i, s := range []*segmented.Stock{other, s} { // at once, not a second later
		if _, err := s.Reserve(t.Context(), segmented.Order{ID: fmt.Sprint("c", i), Qty: 1}); err == nil {
			got++
		} else {
			require.ErrorIs(t, err, segmented.ErrSoldOut)
		}
	}
	require.Equal(t, 1, got)
}

func TestSoldOut_isNotToldToAnOrderThatHasItsUnits(t *testing.T) {
	s := newStock(t, 1)
	other := another(t, s)
	reserve(t, s, "a", 1)
	for i := range 20 {
		_, err := other.Reserve(t.Context(), segmented.Order{ID: fmt.Sprint("b", i), Qty: 1})
		require.ErrorIs(t, err, segmented.ErrSoldOut)
		require.True(t, reserve(t, other, "a", 1).Replayed)
	}
}

func TestSoldOut_isCheap(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 1))
	sell(t, s, "a", 1)
	_, err := s.Reserve(t.Context(), segmented.Order{ID: "b", Qty: 1})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	before := srv.Calls(t)
	const losers, callers = 20_000, 500
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range losers / callers {
				if _, err := s.Reserve(context.Background(), segmented.Order{ID: fmt.Sprint(c, "-", i), Qty: 1}); !errors.Is(err, segmented.ErrSoldOut) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	scripts := srv.Calls(t).Since(before).Scripts()
	t.Logf("%d losers: %.4f scripts each", losers, float64(scripts)/losers)
	require.Less(t, float64(scripts)/losers, 0.2)
}

func TestCost_oneRoundTripEach(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 1000))
	one := func(i int) {
		sell(t, s, fmt.Sprint("a", i), 1)
		reserve(t, s, fmt.Sprint("b", i), 1)
		_, err := s.Cancel(t.Context(), fmt.Sprint("b", i))
		require.NoError(t, err)
	}
	one(0)
	before := srv.Calls(t)
	for i := range 50 {
		one(1 + i)
	}
	require.EqualValues(t, 4*50, srv.Calls(t).Since(before).Scripts())
}

func TestWatch_tellsWhenItIsSoldOutAndWhenNot(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 2))
	watcher := openStock(t, session(t, srv.Addr()), "shoe")
	told := make(chan int64, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watcher.Watch(ctx, func(free int64) { told <- free }) }()
	next := func() int64 {
		t.Helper()
		select {
		case free := <-told:
			return free
		case <-time.After(5 * time.Second):
			t.Fatal("not told")
			return 0
		}
	}
	require.EqualValues(t, 2, next())
	redistest.Eventually(t, 20*time.Second, "it listens", func() bool { return len(srv.Channels(t)) == 1 })
	reserve(t, s, "a", 1)
	before := srv.Calls(t)
	reserve(t, s, "b", 1)
	require.EqualValues(t, 0, next())
	_, err := s.Cancel(t.Context(), "a")
	require.NoError(t, err)
	require.EqualValues(t, 1, next())
	// On a slow machine also one every quarter of a second until the subscription is
	// confirmed.
	require.LessOrEqual(t, srv.Calls(t).Since(before).Scripts(), int64(6+5), "ours, of which the first Cancel is two, one look for each message and one at its start, and no polling")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	redistest.Eventually(t, 20*time.Second, "no subscription is left", func() bool { return len(srv.Channels(t)) == 0 })
}

// The dashboard.
func TestView_sumsUpAtEveryMoment(t *testing.T) {
	s := newStock(t, 200)
	stop := make(chan struct{})
	var views sync.WaitGroup
	for range 2 {
		viewer := another(t, s)
		views.Go(func() {
			for n := 0; ; n++ {
				v, err := viewer.View(context.Background())
				if err != nil || v.Unaccounted() != 0 || v.Free < 0 || v.Reserved < 0 || v.Sold < 0 || v.Free > 200 || v.Added != 200 {
					t.Errorf("%+v %v", v, err)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	var wg sync.WaitGroup
	for b := range 20 {
		wg.Go(func() {
			ctx := context.Background()
			for i := range 50 {
				id := fmt.Sprint(b, "-", i)
				if _, err := s.Reserve(ctx, segmented.Order{ID: id, Qty: int64(1 + i%3)}); err != nil {
					if !errors.Is(err, segmented.ErrSoldOut) {
						t.Error(err)
					}
					continue
				}
				var err error
				if i%2 == 0 {
					_, err = s.Cancel(ctx, id)
				} else if _, err = s.Confirm(ctx, id); err == nil {
					_, err = s.Refund(ctx, segmented.Refund{ID: id, Order: id, Qty: 1})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	views.Wait()
	v, err := s.View(t.Context())
	require.NoError(t, err)
	report, err := s.Reconcile(t.Context(), v.Sold+3)
	require.NoError(t, err)
	require.EqualValues(t, -3, report.Drift, "three were paid and are not sold here")
	require.Zero(t, report.Unaccounted())
}

func TestStock_fullMemoryRefusesOnlyNewOrders(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr(), holdfast.SessionOptions{Timeout: 4 * time.Second}), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	ctx := t.Context()
	for _, id := range []string{"a", "b", "c", "d"} {
		reserve(t, s, id, 1)
	}
	_, err := s.Confirm(ctx, "d")
	require.NoError(t, err)
	_, err = s.Reserve(ctx, segmented.Order{ID: "e", Qty: 1, Window: time.Millisecond})
	require.NoError(t, err)
	free := srv.FillMemory(t)
	_, err = s.Reserve(ctx, segmented.Order{ID: "f", Qty: 1})
	require.ErrorIs(t, err, holdfast.ErrUnavailable)
	require.ErrorContains(t, err, "OOM")
	_, err = s.Confirm(ctx, "a")
	require.NoError(t, err)
	_, err = s.Cancel(ctx, "b")
	require.NoError(t, err)
	_, err = s.Extend(ctx, "c", time.Hour)
	require.NoError(t, err)
	_, err = s.Refund(ctx, segmented.Refund{ID: "r", Order: "d", Qty: 1})
	require.NoError(t, err)
	n, err := s.Sweep(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	requireUnits(t, s, 8, 1, 1)
	free()
	reserve(t, s, "f", 1)
}

func TestStock_forgetsAfterRemember(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 10))
	ctx := t.Context()
	sell(t, s, "a", 1)
	_, err := s.Refund(ctx, segmented.Refund{ID: "f", Order: "a", Qty: 1})
	require.NoError(t, err)
	require.NoError(t, s.Add(ctx, segmented.Delivery{ID: "d", Qty: 1}))
	_, err = s.Reserve(ctx, segmented.Order{ID: "b", Qty: 1, Window: time.Millisecond})
	require.NoError(t, err)
	reserve(t, s, "lives", 1)
	time.Sleep(5 * time.Millisecond)
	_, err = s.Sweep(ctx)
	require.NoError(t, err)
	remembered := func() int64 {
		v, err := s.View(ctx)
		require.NoError(t, err)
		return v.Remembered
	}
	require.EqualValues(t, 5, remembered())
	forget := "holdfast_stock_forget:{shoe:0}"
	for _, field := range []string{"o:a", "f:1:f:a", "a:d", "o:b"} { // a week goes by
		require.NotEmpty(t, srv.Do(t, "ZSCORE", forget, field), field)
		srv.Do(t, "ZADD", forget, "1", field)
	}
	_, err = s.Sweep(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, remembered())
	require.Equal(t, "0", srv.Do(t, "ZCARD", forget))
	require.Equal(t, "0", srv.Do(t, "ZCARD", "holdfast_stock_expired:{shoe:0}"))
	_, err = s.Confirm(ctx, "a")
	require.ErrorIs(t, err, segmented.ErrUnknownOrder)
	requireUnits(t, s, 10, 1, 0)
}

func TestStock_itsKeysShareASlotAndNoCallCrossesSlots(t *testing.T) {
	srv := redistest.Run(t, redistest.Options{Cluster: true})
	s := openStock(t, session(t, srv.Addr(), holdfast.SessionOptions{Prefix: "p:"}), "shoe", segmented.StockOptions{Limit: 5, Buckets: 1})
	ctx := t.Context()
	require.NoError(t, s.Init(ctx, 10))
	for i := range 3 {
		_, err := s.Reserve(ctx, segmented.Order{ID: fmt.Sprint("ann/", i), Buyer: "ann", Qty: 1})
		require.NoError(t, err)
	}
	_, err := s.Confirm(ctx, "ann/0")
	require.NoError(t, err)
	_, err = s.Cancel(ctx, "ann/1")
	require.NoError(t, err)
	_, err = s.Refund(ctx, segmented.Refund{ID: "f", Order: "ann/0", Qty: 1})
	require.NoError(t, err)
	_, err = s.Expired(ctx, 1)
	require.NoError(t, err)
	slots := map[string]bool{}
	for _, k := range srv.Keys(t, "holdfast_stock_*") {
		slots[srv.Do(t, "CLUSTER", "KEYSLOT", k)] = true
		require.Equal(t, "-1", srv.Do(t, "PTTL", k), "%s: a stock does not run out of time", k)
	}
	require.Len(t, slots, 1)
	requireUnits(t, s, 9, 1, 0)
}

func TestWatch_endsWithTheSession(t *testing.T) {
	hf := session(t, server.Addr())
	s := openStock(t, hf, key(t))
	require.NoError(t, s.Init(t.Context(), 1))
	told, done := make(chan int64, 10), make(chan error, 1)
	go func() { done <- s.Watch(context.Background(), func(free int64) { told <- free }) }()
	<-told
	require.NoError(t, hf.Close(t.Context()))
	select {
	case err := <-done:
		require.ErrorIs(t, err, holdfast.ErrClosed)
	case <-time.After(5 * time.Second):
		t.Fatal("it watches on")
	}
}
