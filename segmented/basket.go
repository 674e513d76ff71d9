package segmented

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/scripts"
)

const (
	// tentativeFor is how long a basket may be undecided. Others who want its units
	// wait that long if its process dies.
	tentativeFor = 5 * time.Second
	// confirmFor is how long all lines are kept for a basket that is being confirmed.
	confirmFor = 30 * time.Second
)

// A Line is what a basket has of one stock.
type Line struct {
	Stock *Stock
	Qty   int64
}

// A Basket is an order over several stocks, which gets all of it or nothing. In
// each stock it is an order with the basket's id.
type Basket struct {
	ID     string
	Buyer  string
	Window time.Duration // default: that of each stock
	Lines  []Line        // each stock once
}

// Reserve takes the units of all lines, or none. They are taken tentatively in one
// stock after the other, in the order of their names; then all become reserved.
// If the process dies before, they are free again after five seconds, and orders
// that could do with them wait for that.
//
// The reservations are in the order of the lines. The error is that of the line
// that could not be had; see [Stock.Reserve]. A basket that was refused for what
// is left can be tried again with the same id.
func (b Basket) Reserve(ctx context.Context) ([]Reservation, error) {
	lines, err := b.sorted()
	if err != nil {
		return nil, err
	}
	for n, i := range lines {
		l := b.Lines[i]
		_, err := l.Stock.reserve(ctx, Order{ID: b.ID, Buyer: b.Buyer, Qty: l.Qty, Window: tentativeFor}, "t")
		if err != nil {
			bound, cancel := l.Stock.afterwards(ctx)
			defer cancel()
			for _, i := range lines[:n+1] { // the last one's outcome may be unknown
				_, _ = b.Lines[i].settle(bound, b.ID, 0)
			}
			return nil, err
		}
	}
	reserved := make([]Reservation, len(b.Lines))
	for _, i := range lines {
		window := cmp.Or(b.Window, b.Lines[i].Stock.options.Window)
		if reserved[i], err = b.Lines[i].settle(ctx, b.ID, window); err != nil {
			if errors.Is(err, ErrExpired) || errors.Is(err, ErrState) {
				// The basket is over, for whoever else may have sent it too.
				bound, cancel := b.Lines[i].Stock.afterwards(ctx)
				defer cancel()
				_ = b.Cancel(bound)
			}
			return nil, err
		}
	}
	return reserved, nil
}

// settle makes a tentative line a reserved one, or gives it back for 0.
func (l Line) settle(ctx context.Context, order string, window time.Duration) (Reservation, error) {
	r, err := l.Stock.of(ctx, "settle", order, scripts.StockSettle, core.Millis(window))
	var e *StockError
	if errors.Is(err, ErrUnknownOrder) && errors.As(err, &e) {
		e.Err = ErrExpired // a tentative order leaves no trace when its time is over
	}
	return r, err
}

// afterwards bounds what is done to give back what was taken, also if ctx has
// ended. What cannot be given back in time comes back by itself.
func (s *Stock) afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.tools.Timeout)
}

// Confirm sells all lines, or none: at first it makes sure that none expires
// meanwhile. If it is interrupted, call it again: lines that are sold stay sold.
//
// Errors: as of [Stock.Confirm], and then nothing was sold; holdfast.ErrUnknown
// and holdfast.ErrUnavailable if that is not known.
func (b Basket) Confirm(ctx context.Context) ([]Reservation, error) {
	if _, err := b.sorted(); err != nil {
		return nil, err
	}
	for _, l := range b.Lines {
		r, err := l.Stock.Extend(ctx, b.ID, confirmFor)
		if err != nil && (!errors.Is(err, ErrState) || r.State != Sold) {
			return nil, err
		}
	}
	sold := make([]Reservation, len(b.Lines))
	var failed error
	for i, l := range b.Lines {
		var err error
		sold[i], err = l.Stock.Confirm(ctx, b.ID)
		failed = errors.Join(failed, err)
	}
	return sold, failed
}

// Cancel gives the units of all lines back.
//
// Errors: those of [Stock.Cancel], joined.
func (b Basket) Cancel(ctx context.Context) error {
	if _, err := b.sorted(); err != nil {
		return err
	}
	var failed error
	for _, l := range b.Lines {
		_, err := l.Stock.Cancel(ctx, b.ID)
		failed = errors.Join(failed, err)
	}
	return failed
}

// sorted returns the lines in the order in which all baskets take them.
func (b Basket) sorted() ([]int, error) {
	fail := func(err error) ([]int, error) { return nil, &StockError{Call: "check basket", Order: b.ID, Err: err} }
	if len(b.Lines) == 0 {
		return fail(optionError("there are no lines"))
	}
	lines := make([]int, len(b.Lines))
	for i, l := range b.Lines {
		if l.Stock == nil {
			return fail(optionError("line %d has no stock", i))
		}
		lines[i] = i
	}
	slices.SortFunc(lines, func(i, j int) int { return cmp.Compare(b.Lines[i].Stock.name, b.Lines[j].Stock.name) })
	for n := 1; n < len(lines); n++ {
		if name := b.Lines[lines[n]].Stock.name; name == b.Lines[lines[n-1]].Stock.name {
			return fail(optionError("two lines are of stock %q", name))
		}
	}
	if b.Window != 0 {
		if err := checkWindow(b.Window); err != nil {
			return fail(err)
		}
	}
	return lines, nil
}
