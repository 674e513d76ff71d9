package segmented

import (
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast"
)

// The errors of a stock, beside those of package holdfast. Match them with
// [errors.Is]; each comes as a [*StockError], which says what is left.
var (
	// ErrSoldOut: fewer units are free than the order wants. Left is how many are.
	// Units that others have reserved and not yet paid may still come back.
	ErrSoldOut = errors.New("sold out")

	// ErrLimit: the buyer would have more units than StockOptions.Limit. Left is how
	// many more the buyer may have.
	ErrLimit = errors.New("over the buyer's limit")

	// ErrExpired: the time of the reservation is over, and its units are on sale
	// again. Left is 0. The order's id is used up: another try needs another id.
	ErrExpired = errors.New("reservation expired")

	// ErrConflict: the id was used before, with another quantity or buyer, or
	// a refund is of more units than the order has. Left is the quantity that is
	// known, or the units that can be refunded.
	ErrConflict = errors.New("conflicts with what is known")

	// ErrState: the order is in a state that does not allow the call, such as
	// cancelled for Confirm, or sold for Cancel. State says which; Left is how many
	// units of it are sold.
	ErrState = errors.New("not in this state")

	// ErrUnknownOrder: there is no order of that id, or it was forgotten. Left is 0.
	ErrUnknownOrder = errors.New("unknown order")

	// ErrNotOpen: the stock has not been initialised, or not to the end.
	ErrNotOpen = errors.New("stock not open")

	// ErrDamaged: a part of an open stock is missing in Redis, or belongs to another
	// stock of this name. It is never made anew: that would sell again what was
	// sold. Somebody has to look.
	ErrDamaged = errors.New("stock damaged")
)

// A StockError says which call of which stock failed, and what is left.
type StockError struct {
	// Call is what was asked for, such as "reserve".
	Call string
	// Stock is the full name of the stock, prefix included.
	Stock string
	// Order is the id of the order, or of the delivery; empty if there is none.
	Order string
	// Left is what is left; each error says of what.
	Left int64
	// State is that of the order, 0 if there is none.
	State State
	// Err is one of the errors of this package or of package holdfast.
	Err error
}

// Error names the call, the stock and the order.
func (e *StockError) Error() string {
	text := fmt.Sprintf("segmented: %s %q of stock %q: %v", e.Call, e.Order, e.Stock, e.Err)
	if e.Order == "" {
		text = fmt.Sprintf("segmented: %s stock %q: %v", e.Call, e.Stock, e.Err)
	}
	switch {
	case errors.Is(e.Err, ErrState):
		text += ", but " + e.State.String()
	case errors.Is(e.Err, ErrSoldOut), errors.Is(e.Err, ErrLimit), errors.Is(e.Err, ErrConflict):
		text += fmt.Sprintf(", %d left", e.Left)
	}
	return text
}

// Unwrap returns Err.
func (e *StockError) Unwrap() error { return e.Err }

func (s *Stock) fail(call, order string, err error) error {
	return &StockError{Call: call, Stock: s.name, Order: order, Err: err}
}

// refusals are the errors for the words in which scripts refuse.
var refusals = map[string]error{
	"soldout":   ErrSoldOut,
	"limit":     ErrLimit,
	"conflict":  ErrConflict,
	"expired":   ErrExpired,
	"unknown":   ErrUnknownOrder,
	"cancelled": ErrState,
	"sold":      ErrState,
	"reserved":  ErrState,
}

func optionError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", holdfast.ErrOption, fmt.Sprintf(format, args...))
}
