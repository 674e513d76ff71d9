package segmented

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
)

// An Order asks for units of a stock.
type Order struct {
	// ID makes the order one order, whichever process sends it and however often. It
	// is the caller's: the id of the cart, say. At most 512 bytes.
	ID string
	// Buyer is who the units count for where the stock has a limit; then it is
	// needed. At most 512 bytes.
	Buyer string
	// Qty is the number of units, from 1 to 1e9: all of them or none.
	Qty int64
	// Window is how long the units stay reserved, in whole milliseconds, rounded up.
	// Default: that of the stock.
	Window time.Duration
}

// A Refund puts units of a sold order on sale again.
type Refund struct {
	// ID makes the refund one refund of its order, however often it is sent. At most
	// 512 bytes.
	ID string
	// Order is the id of the order that the units were sold to.
	Order string
	// Qty is the number of units, from 1 up to what is left of the order.
	Qty int64
}

// A Delivery puts more units on sale.
type Delivery struct {
	// ID makes the delivery one delivery, however often it is sent. At most 512
	// bytes.
	ID string
	// Qty is the number of units, from 1 to 1e9.
	Qty int64
}

// A State says how an order stands.
type State uint8

const (
	// Tentative: part of a basket that is not decided yet.
	Tentative State = iota + 1
	// Reserved: the units are the order's until its time is over.
	Reserved
	// Sold: confirmed. Some or all of its units may have been refunded.
	Sold
	// Cancelled: given up before it was sold.
	Cancelled
	// Expired: its time was over before it was sold.
	Expired
)

// String returns the state as a word.
func (s State) String() string {
	switch s {
	case Tentative:
		return "tentative"
	case Reserved:
		return "reserved"
	case Sold:
		return "sold"
	case Cancelled:
		return "cancelled"
	case Expired:
		return "expired"
	default:
		return "unknown"
	}
}

var states = map[string]State{"t": Tentative, "r": Reserved, "s": Sold, "x": Cancelled, "e": Expired}

// A Reservation is what Redis says of an order. Its times are those of the
// server.
type Reservation struct {
	// Order is the order as it is known; its Window is not.
	Order Order
	// State is how it stands.
	State State
	// Refunded is how many of its units have been refunded.
	Refunded int64
	// At is when the answer was given.
	At time.Time
	// Until is when the time of a reserved order is over, and otherwise when the
	// order came into its state.
	Until time.Time
	// Left is the rest of the time of a reserved order, 0 in every other state.
	Left time.Duration
	// Replayed: the call had been made before and changed nothing this time.
	Replayed bool
}

const (
	maxID  = 512
	maxQty = 1e9
	// longestWindow also keeps times below what Lua counts exactly.
	longestWindow = 10 * 365 * 24 * time.Hour
)

func checkID(what, id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: the id of the %s is empty", holdfast.ErrName, what)
	case len(id) > maxID:
		return fmt.Errorf("%w: the id of the %s has %d bytes, the limit is %d", holdfast.ErrName, what, len(id), maxID)
	}
	return nil
}

func checkOrder(o Order) error {
	if o.ID != "" && len(o.ID) <= maxID && len(o.Buyer) <= maxID && o.Qty >= 1 && o.Qty <= maxQty && o.Window > 0 && o.Window <= longestWindow {
		return nil
	}
	err := errors.Join(checkID("order", o.ID), checkQty(o.Qty), checkWindow(o.Window))
	if o.Buyer != "" {
		err = errors.Join(err, checkID("buyer", o.Buyer))
	}
	return err
}

func checkQty(qty int64) error {
	if qty < 1 || qty > maxQty {
		return optionError("Qty is %d, from 1 to %d", qty, int64(maxQty))
	}
	return nil
}

func checkWindow(d time.Duration) error {
	if d <= 0 || d > longestWindow {
		return optionError("the window is %v, more than 0 and at most %v", d, longestWindow)
	}
	return nil
}

// A reply is what scripts say of one order.
type reply struct {
	word        string
	left        int64
	reservation Reservation
}

// readReply reads {word, left, now, state, units, refunded, at, buyer, replayed}.
func readReply(id string, m rueidis.RedisMessage) (reply, error) {
	list, err := m.ToArray()
	if err != nil {
		return reply{}, err
	}
	if len(list) != 9 {
		return reply{}, fmt.Errorf("a reply of %d parts", len(list))
	}
	var r reply
	var state string
	var now, at, replayed int64
	o := &r.reservation
	for i, to := range []any{&r.word, &r.left, &now, &state, &o.Order.Qty, &o.Refunded, &at, &o.Order.Buyer, &replayed} {
		switch to := to.(type) {
		case *string:
			*to, err = list[i].ToString()
		case *int64:
			*to, err = list[i].ToInt64()
		}
		if err != nil {
			return reply{}, err
		}
	}
	o.Order.ID, o.State, o.Replayed = id, states[state], replayed == 1
	o.At, o.Until = time.UnixMilli(now), time.UnixMilli(at)
	if o.State == Reserved || o.State == Tentative {
		o.Left = o.Until.Sub(o.At)
	}
	return r, nil
}
