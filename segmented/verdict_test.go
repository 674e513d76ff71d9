package segmented_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/scripts"
	"github.com/holdfast-go/holdfast/segmented"
)

// A pair is a stock of two buckets. One process reaches it through a proxy, others
// directly.
type pair struct {
	*broken
	t      *testing.T
	here   *segmented.Stock
	direct *segmented.Stock
	client rueidis.Client
	id     string
}

func newPair(t *testing.T, units int64) *pair {
	t.Helper()
	b := breakable(t)
	p := &pair{broken: b, t: t, client: connect(t, b.Addr())}
	o := segmented.StockOptions{Buckets: 2}
	p.direct = openStock(t, session(t, b.Addr()), "shoe", o)
	require.NoError(t, p.direct.Init(t.Context(), units))
	_, err := p.direct.View(t.Context()) // so that the script is known, and looks are one command each
	require.NoError(t, err)
	p.here = openStock(t, session(t, b.proxy.Addr()), "shoe", o)
	p.id = b.Do(t, "HGET", "holdfast_stock:{shoe}", "id")
	return p
}

func units(bucket int) string { return fmt.Sprintf("holdfast_stock_units:{shoe:%d}", bucket) }

// of is an order whose bucket is that.
func of(bucket int, name string) string {
	for i := 0; ; i++ {
		if id := fmt.Sprint(name, i); segmented.Hash(id)%2 == uint64(bucket) {
			return id
		}
	}
}

// bucket runs a script of a bucket, as another process would.
func (p *pair) bucket(i int, s *scripts.Script, args ...string) rueidis.RedisMessage {
	p.t.Helper()
	var keys []string
	for _, part := range []string{"units", "orders", "ends", "forget", "expired", "buyers"} {
		keys = append(keys, fmt.Sprintf("holdfast_stock_%s:{shoe:%d}", part, i))
	}
	m, err := s.Exec(p.t.Context(), p.client, keys, append([]string{p.id, "channel", "PUBLISH", "600000"}, args...)).ToMessage()
	require.NoError(p.t, err)
	return m
}

// give sends units to the other bucket, and no more is heard of the sender.
func (p *pair) give(from int, units int64) (number int64) {
	p.t.Helper()
	m := p.bucket(from, scripts.StockGive, strconv.Itoa(1-from), strconv.FormatInt(units, 10), "0", strconv.Itoa(from), "0")
	list, err := m.AsIntSlice()
	require.NoError(p.t, err)
	require.Equal(p.t, units, list[1])
	return list[0]
}

// carry sends units to the other bucket.
func (p *pair) carry(from int, units int64) {
	p.t.Helper()
	number := p.give(from, units)
	p.bucket(1-from, scripts.StockTake, fmt.Sprintf("%d %d %d ", from, number, units))
	noted, err := scripts.StockArrived.Exec(p.t.Context(), p.client, []string{fmt.Sprintf("holdfast_stock_units:{shoe:%d}", from)},
		[]string{p.id, strconv.Itoa(1 - from), strconv.FormatInt(number, 10)}).AsInt64()
	require.NoError(p.t, err)
	require.EqualValues(p.t, 1, noted)
}

func (p *pair) cancel(order string) {
	p.t.Helper()
	_, err := p.direct.Cancel(p.t.Context(), order)
	require.NoError(p.t, err)
}

// A pause is in the next look, after bucket 0 was seen and before bucket 1 is.
type pause struct{ seen, next *redistest.Hold }

func (p *pair) betweenViews() pause {
	return pause{p.proxy.HoldReply(sha(p.t, p.Server, scripts.StockView)), p.proxy.HoldRequest(units(1))}
}

func (h pause) wait() {
	<-h.seen.Held()
	<-h.next.Held()
}

func (h pause) end() {
	h.next.Release()
	h.seen.Release()
}

// reserving reserves an order through the proxy.
func (p *pair) reserving(order string, qty int64) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := p.here.Reserve(ctx, segmented.Order{ID: order, Qty: qty})
		done <- err
	}()
	return done
}

// requireFree says what is free in each bucket.
func (p *pair) requireFree(free ...int64) {
	p.t.Helper()
	v, err := p.direct.View(p.t.Context())
	require.NoError(p.t, err)
	var got []int64
	for _, b := range v.Buckets {
		got = append(got, b.Free)
	}
	require.Equal(p.t, free, got)
}

// What was on its way in a stock that is gone comes to nobody in the next one.
func TestReserve_unitsOfAnotherStockAreNotTakenIn(t *testing.T) {
	p := newPair(t, 20)
	for i := range 2 { // bucket 0 is empty
		reserve(t, p.direct, of(0, fmt.Sprint("x", i, "-")), 5)
	}
	hold := p.proxy.HoldReply(sha(t, p.Server, scripts.StockGive))
	done := p.reserving(of(0, "a"), 3)
	<-hold.Held()
	p.Do(t, "FLUSHALL")
	other := openStock(t, session(t, p.Addr()), "shoe", segmented.StockOptions{Buckets: 2})
	require.NoError(t, other.Init(t.Context(), 6))
	hold.Release()
	require.NoError(t, <-done)
	v, err := other.View(t.Context())
	require.NoError(t, err)
	require.Equal(t, segmented.Units{Free: 3, Reserved: 3, Added: 6}, v.Units)
}

// Of a stock that has taken the place of another all buckets are looked into, however
// many the other one had.
func TestSoldOut_isNotToldByTheBucketsOfAnotherStock(t *testing.T) {
	srv := redistest.Run(t)
	s := openStock(t, session(t, srv.Addr()), "shoe")
	require.NoError(t, s.Init(t.Context(), 1))
	reserve(t, s, "x", 1)
	srv.Do(t, "FLUSHALL")
	other := openStock(t, session(t, srv.Addr()), "shoe", segmented.StockOptions{Buckets: 2})
	require.NoError(t, other.Init(t.Context(), 1))
	reserve(t, s, of(1, "a"), 1) // the unit is in bucket 0
}

// One look sees the buckets at different moments: a unit that goes from the one that
// is seen last to the one that was seen first is seen in neither.
func TestSoldOut_isNotToldForAUnitThatMoves(t *testing.T) {
	p := newPair(t, 1)
	p.requireFree(1, 0)
	p.carry(0, 1)
	between := p.betweenViews()
	done := p.reserving(of(0, "a"), 1)
	between.wait()
	p.carry(1, 1)
	between.end()
	require.NoError(t, <-done)
	p.requireFree(0, 0)
}

// Nor are two looks enough if units came on sale meanwhile: at each moment of this
// there is a unit, and at each look at a bucket it is in the other one.
func TestSoldOut_isNotToldWhenUnitsCameOnSaleBetweenTheLooks(t *testing.T) {
	p := newPair(t, 2)
	x0, y1, z0 := of(0, "x"), of(1, "y"), of(0, "z")
	reserve(t, p.direct, x0, 1)
	first := p.betweenViews()
	done := p.reserving(of(0, "a"), 1)
	first.wait()
	p.cancel(x0)
	reserve(t, p.direct, y1, 1)
	before, second := p.proxy.HoldRequest(units(0)), p.betweenViews()
	first.end()
	<-before.Held()
	p.cancel(y1)
	reserve(t, p.direct, z0, 1)
	before.Release()
	second.wait()
	p.cancel(z0)
	reserve(t, p.direct, of(1, "w"), 1)
	second.end()
	require.NoError(t, <-done)
	p.requireFree(0, 0)
}

// What the last look saw was not all there at one moment; what the one before saw
// was no less than that.
func TestSoldOut_goesByTheFirstOfTwoLooks(t *testing.T) {
	p := newPair(t, 4)
	ctx := t.Context()
	x, y := of(0, "x"), of(1, "y")
	reserve(t, p.direct, x, 2)
	reserve(t, p.direct, y, 2)
	_, err := p.here.Reserve(ctx, segmented.Order{ID: of(0, "a"), Qty: 1})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	p.cancel(y)
	reserve(t, p.here, of(1, "b"), 1) // looks first, since it was sold out
	between := p.betweenViews()
	done := p.reserving(of(0, "c"), 1)
	between.wait()
	p.cancel(x)
	reserve(t, p.direct, of(1, "z"), 1)
	between.end()
	require.NoError(t, <-done)
	p.requireFree(1, 0)
}

// Units on their way, whose process died, and units of orders whose time is over,
// are brought home before anybody is told that there are none.
func TestSoldOut_isNotToldAfterAnyStepThatNobodyFollowed(t *testing.T) {
	for what, lost := range map[string]func(p *pair){
		"given":     func(p *pair) { p.give(1, 1) },
		"taken":     func(p *pair) { p.bucket(0, scripts.StockTake, fmt.Sprintf("1 %d 1 ", p.give(1, 1))) },
		"to others": func(p *pair) { p.carry(1, 1); p.give(0, 1) },
		"over": func(p *pair) {
			_, err := p.direct.Reserve(p.t.Context(), segmented.Order{ID: of(1, "x"), Qty: 1, Window: time.Millisecond})
			require.NoError(p.t, err)
			time.Sleep(5 * time.Millisecond)
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPair(t, 2)
			reserve(t, p.direct, of(0, "y"), 1)
			lost(p)
			require.NoError(t, <-p.reserving(of(0, "a"), 1))
			_, err := p.direct.Sweep(t.Context())
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				v, err := p.direct.View(t.Context())
				return err == nil && v.Free == 0 && v.Buckets[0].InTransit == 0 && v.Buckets[1].InTransit == 0
			}, 20*time.Second, 5*time.Millisecond, "it is noted that they have arrived")
		})
	}
}

func TestSoldOut_isToldForWhatIsNotThere(t *testing.T) {
	p := newPair(t, 5)
	_, err := p.here.Reserve(t.Context(), segmented.Order{ID: of(0, "a"), Qty: 6})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	require.EqualValues(t, 5, left(t, err))
	reserve(t, p.here, of(0, "b"), 5)
	for bucket := range 2 {
		_, err = p.here.Reserve(t.Context(), segmented.Order{ID: of(bucket, "c"), Qty: 1})
		require.ErrorIs(t, err, segmented.ErrSoldOut)
		require.Zero(t, left(t, err))
	}
	reserve(t, p.here, of(0, "b"), 5)
}

// An order has its bucket share the work with the one that has units: half of them
// come. Where none are to rest only those come that are needed.
func TestReserve_fetchesHalf(t *testing.T) {
	p := newPair(t, 20)
	p.carry(0, 10)
	reserve(t, p.direct, of(0, "a"), 1)
	p.requireFree(9, 10)
	require.Eventually(t, func() bool { return p.Do(t, "HGET", units(1), "transit") == "0" }, 20*time.Second, time.Millisecond,
		"the sender knows that they have arrived")
	require.NoError(t, p.direct.Resize(t.Context(), 1))
	p.requireFree(19, 0)
	reserve(t, p.direct, of(1, "b"), 2)
	p.requireFree(17, 0)
	require.NoError(t, p.direct.Resize(t.Context(), 2))
	p.requireFree(9, 8)
	reserve(t, p.direct, of(1, "c"), 17)
	p.requireFree(0, 0)
}

// What a process that died has left on its way, and in buckets where no units are
// to rest, the next sweep brings home.
func TestSweep_finishesWhatOthersBegan(t *testing.T) {
	p := newPair(t, 20)
	require.NoError(t, p.direct.Resize(t.Context(), 1))
	reserve(t, p.direct, of(1, "b"), 2)
	p.cancel(of(1, "b"))
	p.requireFree(18, 2)
	p.give(0, 5)
	v, err := p.direct.View(t.Context())
	require.NoError(t, err)
	require.Equal(t, segmented.Units{Free: 15, InTransit: 5, Added: 20}, v.Units)
	require.EqualValues(t, 5, v.Buckets[0].InTransit)
	for range 2 { // what arrives at one is moved by the next
		_, err = p.direct.Sweep(t.Context())
		require.NoError(t, err)
	}
	p.requireFree(20, 0)
}

// Whoever sent units is told that they have arrived when they have, and not before:
// from then on nobody looks after them.
func TestSweep_aTransferIsOpenUntilItIsTakenIn(t *testing.T) {
	p := newPair(t, 20)
	p.give(0, 5)
	hold := p.proxy.HoldRequest(sha(t, p.Server, scripts.StockTake))
	done := make(chan error, 1)
	go func() {
		_, err := p.here.Sweep(context.Background())
		done <- err
	}()
	<-hold.Held()
	require.Equal(t, "5", p.Do(t, "HGET", units(0), "transit"))
	hold.Release()
	require.NoError(t, <-done)
	require.Equal(t, "0", p.Do(t, "HGET", units(0), "transit"))
	p.requireFree(5, 15)
}

// All orders of a buyer are in one bucket, so that a limit is one.
func TestLimit_holdsOverAllBuckets(t *testing.T) {
	s := newStock(t, 60, segmented.StockOptions{Limit: 3, Buckets: 6})
	got := 0
	for i := range 20 {
		_, err := s.Reserve(t.Context(), segmented.Order{ID: segmented.OrderID("ann", fmt.Sprint(i)), Buyer: "ann", Qty: 1})
		if err == nil {
			got++
		} else {
			require.ErrorIs(t, err, segmented.ErrLimit)
		}
	}
	require.Equal(t, 3, got)
}

// What one process says of where units are to rest, others learn when they sweep, or
// deal out a delivery.
func TestResize_reachesOtherProcesses(t *testing.T) {
	p := newPair(t, 20)
	reserve(t, p.here, of(0, "a"), 1)
	require.NoError(t, p.direct.Resize(t.Context(), 1))
	_, err := p.here.Sweep(t.Context())
	require.NoError(t, err)
	reserve(t, p.here, of(1, "b"), 1)
	p.requireFree(18, 0)
	require.NoError(t, p.direct.Resize(t.Context(), 2))
	require.NoError(t, p.here.Add(t.Context(), segmented.Delivery{ID: "d", Qty: 2}))
	p.requireFree(10, 10)
	require.NoError(t, p.direct.Resize(t.Context(), 1))
	require.NoError(t, p.here.Add(t.Context(), segmented.Delivery{ID: "e", Qty: 2}))
	p.requireFree(22, 0)
}

// When memory is full, what gives units back or sells them works in every bucket.
func TestStock_fullMemoryOfSeveralBuckets(t *testing.T) {
	p := newPair(t, 20)
	ctx := t.Context()
	for i := range 2 {
		for _, name := range []string{"a", "b", "c", "d"} {
			reserve(t, p.direct, of(i, name), 1)
		}
		_, err := p.direct.Confirm(ctx, of(i, "d"))
		require.NoError(t, err)
		_, err = p.direct.Reserve(ctx, segmented.Order{ID: of(i, "e"), Qty: 1, Window: time.Millisecond})
		require.NoError(t, err)
	}
	time.Sleep(5 * time.Millisecond)
	number := p.give(0, 1)
	free := p.FillMemory(t)
	for i := range 2 {
		_, err := p.direct.Confirm(ctx, of(i, "a"))
		require.NoError(t, err)
		_, err = p.direct.Cancel(ctx, of(i, "b"))
		require.NoError(t, err)
		_, err = p.direct.Extend(ctx, of(i, "c"), time.Hour)
		require.NoError(t, err)
		_, err = p.direct.Refund(ctx, segmented.Refund{ID: "r", Order: of(i, "d"), Qty: 1})
		require.NoError(t, err)
	}
	v, err := p.direct.View(ctx)
	require.NoError(t, err)
	require.Equal(t, segmented.Units{Free: 13, Reserved: 4, Sold: 2, InTransit: 1, Added: 20}, v.Units)
	expired, err := p.direct.Expired(ctx, 10)
	require.NoError(t, err)
	require.Len(t, expired, 2)
	free()
	_, err = p.direct.Sweep(ctx)
	require.NoError(t, err)
	v, err = p.direct.View(ctx)
	require.NoError(t, err)
	require.Equal(t, segmented.Units{Free: 16, Reserved: 2, Sold: 2, Added: 20}, v.Units)
	require.Positive(t, number)
}

// An order of several units leaves a note of its wish in its bucket, which takes
// memory. It is sold out with or without that.
func TestStock_fullMemoryHidesNoSoldOut(t *testing.T) {
	p := newPair(t, 20)
	free := p.FillMemory(t)
	defer free()
	_, err := p.direct.Reserve(t.Context(), segmented.Order{ID: of(0, "large"), Qty: 100})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
	require.EqualValues(t, 20, left(t, err))
}
