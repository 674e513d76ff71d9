package segmented_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast/scripts"
	"github.com/holdfast-go/holdfast/segmented"
)

// torn is a stock of two buckets and two units, whose buckets a slow process reads at
// moments that the test chooses.
type torn struct {
	*broken
	slow, quick *segmented.Stock
	view        string
	n           int
}

func newTorn(t *testing.T) *torn {
	b := breakable(t)
	o := segmented.StockOptions{Buckets: 2}
	s := &torn{
		broken: b, slow: openStock(t, session(t, b.proxy.Addr()), "shoe", o), quick: openStock(t, session(t, b.Addr()), "shoe", o),
		view: sha(t, b.Server, scripts.StockView),
	}
	require.NoError(t, s.quick.Init(t.Context(), 2))
	_, err := s.slow.View(t.Context()) // it has its connections
	require.NoError(t, err)
	return s
}

// of is how the wire shows that a bucket is read.
func (s *torn) of(bucket int) string {
	return fmt.Sprintf("%s 4 holdfast_stock_units:{shoe:%d}", s.view, bucket)
}

// between has the next look stop when bucket 0 was read and bucket 1 was not, until goOn is
// called.
func (s *torn) between() (there, goOn func()) {
	read, next := s.proxy.HoldReply(s.of(0)), s.proxy.HoldRequest(s.of(1))
	return func() {
		<-read.Held()
		<-next.Held()
		read.Release()
	}, next.Release
}

// sell sells the unit of a bucket.
func (s *torn) sell(t *testing.T, bucket int) (order string) {
	t.Helper()
	s.n++
	order = idsOf(bucket, 2, s.n+1)[s.n]
	sell(t, s.quick, order, 1)
	return order
}

func (s *torn) refund(t *testing.T, order string) {
	t.Helper()
	_, err := s.quick.Refund(t.Context(), segmented.Refund{ID: "f", Order: order, Qty: 1})
	require.NoError(t, err)
}

// There is a unit all the time, always in the bucket that is not being looked into.
func TestSoldOut_isNotToldWhereOneLookAfterTheOtherMissesAUnit(t *testing.T) {
	s := newTorn(t)
	here := s.sell(t, 0)
	first, goOn := s.between()
	done := make(chan error, 1)
	go func() {
		_, err := s.slow.Reserve(context.Background(), segmented.Order{ID: idsOf(0, 2, 1)[0], Qty: 1})
		done <- err
	}()
	swap := func() (there string) { // after bucket 0 was read and before bucket 1 is
		s.refund(t, here)
		return s.sell(t, 1)
	}
	first()
	there := swap()
	again := s.proxy.HoldRequest(s.of(0))
	second, end := s.between()
	goOn()
	<-again.Held() // the second look, and the other way round
	s.refund(t, there)
	here = s.sell(t, 0)
	again.Release()
	second()
	swap()
	end()
	require.NoError(t, <-done)
	requireUnits(t, s.quick, 0, 1, 1)
}

// A whole transfer takes place after its receiver was read and before its sender is.
func TestView_missesNoTransferBetweenTwoReads(t *testing.T) {
	s := newTorn(t)
	quiet := s.proxy.HoldReply(s.of(1))
	views := make(chan segmented.View, 1)
	go func() {
		v, err := s.slow.View(context.Background())
		if err != nil {
			t.Error(err)
		}
		views <- v
	}()
	<-quiet.Held() // nothing is on its way
	torn, goOn := s.between()
	quiet.Release()
	torn()
	require.NoError(t, s.quick.Resize(t.Context(), 1))
	goOn()
	require.Equal(t, segmented.Units{Free: 2, Added: 2}, (<-views).Units)
}

// The same, of a transfer that the first look saw on its way.
func TestView_missesNoTransferThatArrivesBetweenTwoReads(t *testing.T) {
	s := newTorn(t)
	late := openStock(t, session(t, s.proxy.Addr()), "shoe")
	take := s.proxy.HoldRequest(sha(t, s.Server, scripts.StockTake))
	resized := make(chan error, 1)
	go func() { resized <- late.Resize(context.Background(), 1) }()
	<-take.Held() // the unit of bucket 1 is on its way
	seen := s.proxy.HoldReply(s.of(1))
	views := make(chan segmented.View, 1)
	go func() {
		v, err := s.slow.View(context.Background())
		if err != nil {
			t.Error(err)
		}
		views <- v
	}()
	<-seen.Held()
	torn, goOn := s.between()
	seen.Release()
	torn()
	_, err := s.quick.Sweep(t.Context())
	require.NoError(t, err)
	goOn()
	v := <-views
	require.Zero(t, v.Unaccounted(), "%+v", v.Units)
	take.Release()
	require.NoError(t, <-resized)
	requireUnits(t, s.quick, 2, 0, 0)
}
