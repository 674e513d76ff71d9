package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// units says which order an operation is about, and of how many units.
func units(order string, n int) func(*Op) {
	return func(o *Op) { o.Hold, o.Count = order, n }
}

func why(reason string) func(*Op)  { return func(o *Op) { o.Err = reason } }
func refundOf(id string) func(*Op) { return func(o *Op) { o.Owner = id } }
func end(at int64) func(*Op)       { return func(o *Op) { o.Until = at } }

var stockHistories = []struct {
	name string
	good bool
	ops  []Op
}{
	{"sold to the last unit", true, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 1), end(100)), op(1, Confirm, 20, 30, Done, units("a", 0)),
		op(2, Reserve, 40, 50, Done, units("b", 1), end(140)), op(2, Reserve, 60, 70, Refused, units("c", 1), why(SoldOut)),
	}},
	{"sold too often", false, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 1), end(100)), op(1, Reserve, 20, 30, Done, units("b", 1), end(100)),
		op(2, Reserve, 40, 50, Done, units("c", 1), end(140)),
	}},
	{"an order taken twice is one", true, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 1), end(100)), op(1, Reserve, 20, 30, Done, units("a", 1), end(100)),
		op(2, Reserve, 40, 50, Done, units("c", 1), end(140)),
	}},
	{"sold out while there is one", false, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 1), end(100)), op(2, Reserve, 20, 30, Refused, units("b", 1), why(SoldOut)),
	}},
	{"one that expired is on sale again", true, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 2), end(100)), op(2, Reserve, 110, 120, Done, units("b", 1), end(200)),
		op(1, Confirm, 130, 140, Refused, units("a", 0), why(Expired)),
	}},
	{"one that expired is sold", false, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 2), end(100)), op(2, Reserve, 110, 120, Done, units("b", 1), end(200)),
		op(1, Confirm, 130, 140, Done, units("a", 0)),
	}},
	{"one expires before its time", false, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 2), end(100)), op(2, Reserve, 60, 70, Done, units("b", 1), end(200)),
	}},
	{"a reservation of unknown outcome", true, []Op{
		op(1, Reserve, 0, 10, Unknown, units("a", 2)), op(2, Reserve, 20, 30, Done, units("b", 2), end(200)),
		op(2, Cancel, 40, 50, Done, units("b", 0)), op(2, Reserve, 60, 70, Refused, units("c", 1), why(SoldOut)),
	}},
	{"cancelled, and on sale again", true, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 2), end(100)), op(1, Cancel, 20, 30, Done, units("a", 0)),
		op(2, Reserve, 40, 50, Done, units("b", 2), end(140)), op(1, Confirm, 60, 70, Refused, units("a", 0), why(Cancelled)),
	}},
	{"cancelled, and sold", false, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 2), end(100)), op(1, Cancel, 20, 30, Done, units("a", 0)),
		op(1, Confirm, 60, 70, Done, units("a", 0)),
	}},
	{"cancelled before it came", true, []Op{
		op(1, Cancel, 0, 10, Refused, units("a", 0), why(NoOrder)), op(1, Reserve, 20, 30, Refused, units("a", 1), why(Cancelled)),
	}},
	{"refunded once", true, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 2), end(100)), op(1, Confirm, 20, 30, Done, units("a", 0)),
		op(1, Refund, 40, 50, Done, units("a", 1), refundOf("f")), op(1, Refund, 60, 70, Done, units("a", 1), refundOf("f")),
		op(2, Reserve, 80, 90, Done, units("b", 1), end(200)), op(2, Reserve, 91, 92, Refused, units("c", 1), why(SoldOut)),
	}},
	{"refunded twice", false, []Op{
		op(1, Reserve, 0, 10, Done, units("a", 2), end(100)), op(1, Confirm, 20, 30, Done, units("a", 0)),
		op(1, Refund, 40, 50, Done, units("a", 1), refundOf("f")), op(1, Refund, 60, 70, Done, units("a", 1), refundOf("f")),
		op(2, Reserve, 80, 90, Done, units("b", 2), end(200)),
	}},
}

func TestStock_acceptsAndRefuses(t *testing.T) {
	for _, h := range stockHistories {
		t.Run(h.name, func(t *testing.T) {
			err := Check(Stock{Units: 2, Window: 50}, h.ops, 10*time.Second)
			if h.good {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
				t.Log(err)
			}
		})
	}
}
