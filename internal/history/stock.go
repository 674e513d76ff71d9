package history

import (
	"fmt"
	"strconv"
	"strings"
)

// The verbs of a stock. Hold is the order, Count the units, Owner the refund; Err
// is the reason of a refusal, and Until the end of a reservation on the clock of
// Now.
const (
	Reserve Verb = "Reserve"
	Confirm Verb = "Confirm"
	Cancel  Verb = "Cancel"
	Refund  Verb = "Refund"
	Expire  Verb = "Expire" // nobody asks for it
)

// The reasons for which a stock refuses.
const (
	SoldOut   = "sold out"
	Expired   = "expired"
	Cancelled = "cancelled"
	Sold      = "sold"
	NoOrder   = "unknown"
	TooMany   = "conflict"
)

// Stock is the model of a stock of so many units without a limit for buyers, of
// which no order is forgotten:
//
//   - an order gets its units while there are enough, once, and is refused as sold
//     out only while there are not;
//   - it is sold, cancelled or expired, whichever comes first, and stays so;
//   - it expires only when its time is over, at any moment after that.
type Stock struct {
	Units int
	// Window is the shortest for which units are reserved, in nanoseconds: for
	// reservations of which nobody was told when they end.
	Window int64
}

// stockOrder is what has become of one order.
type stockOrder struct {
	state string // reserved, or a reason
	units int
	back  int
}

// Prepare implements Model. Of all that may have an effect on an order, or none,
// one of a kind is enough, the first: none has an effect twice.
func (m Stock) Prepare(ops []Op) []Op {
	var out []Op
	ends := map[string]int64{}
	ended := func(op *Op, at int64) {
		if was, ok := ends[op.Hold]; !ok || at < was {
			ends[op.Hold] = at
		}
	}
	maybe := map[[3]string]bool{}
	for i := range ops { // by call
		op := ops[i]
		first := op.Verb == Reserve && op.Outcome == Refused && (op.Err == Expired || op.Err == Cancelled)
		if op.Outcome != Unknown {
			out = append(out, op)
			if op.Verb == Reserve && op.Outcome == Done {
				ended(&op, op.Until)
			}
		}
		if op.Outcome == Unknown || first {
			// Of one that was refused, the first copy may have been executed without an
			// answer, and the order have ended before the next one came.
			kind := [3]string{string(op.Verb), op.Hold, op.Owner}
			if !maybe[kind] {
				maybe[kind] = true
				op.Outcome, op.Err, op.Return = Unknown, "", Never
				out = append(out, op)
				if op.Verb == Reserve {
					ended(&op, op.Call+m.Window)
				}
			}
		}
	}
	for order, end := range ends {
		out = append(out, Op{Name: ops[0].Name, Client: -1, Verb: Expire, Call: end, Return: Never, Outcome: Done, Hold: order})
	}
	byCall(out)
	return out
}

// Init implements Model.
func (m Stock) Init() any { return strconv.Itoa(m.Units) + ";" }

// Step implements Model. The state is a text, for states are compared.
func (m Stock) Step(state any, op *Op) (any, bool) {
	text := state.(string)
	freeText, rest, _ := strings.Cut(text, ";")
	free, _ := strconv.Atoi(freeText)
	o := stockOrder{}
	entry := ""
	if i := strings.Index(rest, " "+op.Hold+"="); i >= 0 {
		entry = rest[i:]
		entry = entry[:strings.IndexByte(entry, ';')+1]
		part := strings.Split(strings.TrimSuffix(entry, ";"), "=")
		o.state = part[1]
		o.units, _ = strconv.Atoi(part[2])
		o.back, _ = strconv.Atoi(part[3])
	}
	// become is the state in which the order is o, and its refund is known.
	become := func(o stockOrder, refund string) string {
		next := fmt.Sprintf(" %s=%s=%d=%d;", op.Hold, o.state, o.units, o.back)
		if entry != "" {
			next = strings.Replace(rest, entry, next, 1)
		} else {
			next = insert(rest, next)
		}
		if refund != "" {
			next = insert(next, " refund "+refund+";")
		}
		return strconv.Itoa(free) + ";" + next
	}
	refused := op.Outcome == Refused
	// As an outcome may be unknown, what would be refused changes nothing then.
	is := func(reason string) bool { return refused && op.Err == reason || op.Outcome == Unknown }
	switch op.Verb {
	case Reserve:
		switch {
		case o.state == "reserved", o.state == Sold:
			return text, op.Outcome == Done || op.Outcome == Unknown
		case o.state != "":
			return text, is(o.state)
		case free < op.Count:
			return text, is(SoldOut)
		}
		free -= op.Count
		return become(stockOrder{"reserved", op.Count, 0}, ""), !refused
	case Confirm:
		if o.units == 0 {
			return text, is(NoOrder)
		}
		switch o.state {
		case Sold:
			return text, !refused
		case "reserved":
			o.state = Sold
			return become(o, ""), !refused
		}
		return text, is(o.state)
	case Cancel:
		switch o.state {
		case "": // and it will never come
			return become(stockOrder{state: Cancelled}, ""), is(NoOrder)
		case Sold:
			return text, is(Sold)
		case "reserved":
			free += o.units
			o.state = Cancelled
			return become(o, ""), !refused
		}
		return text, !refused || o.units == 0 && op.Err == NoOrder
	case Refund:
		switch {
		case strings.Contains(rest, " refund "+op.Owner+";"):
			return text, !refused
		case o.state == "" || o.units == 0:
			return text, is(NoOrder)
		case o.state != Sold:
			return text, is(o.state)
		case o.units-o.back < op.Count:
			return text, is(TooMany)
		}
		free += op.Count
		o.back += op.Count
		return become(o, op.Owner), !refused
	case Expire:
		if o.state == "reserved" {
			free += o.units
			o.state = Expired
			return become(o, ""), true
		}
		return text, true
	default:
		return text, false
	}
}

// insert puts an entry in its place, so that equal states are equal texts.
func insert(list, entry string) string {
	at := 0
	for at < len(list) {
		end := at + strings.IndexByte(list[at:], ';') + 1
		if list[at:end] > entry {
			break
		}
		at = end
	}
	return list[:at] + entry + list[at:]
}
