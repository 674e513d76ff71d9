package segmented

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/scripts"
)

// Units say where the units of a stock are. At every moment
//
//	Free + Reserved + Tentative + Sold + InTransit = Added
type Units struct {
	// Free units are on sale.
	Free int64
	// Reserved ones belong to orders that are not paid yet, also to those whose time
	// is over and which nobody has swept yet.
	Reserved int64
	// Tentative ones are in baskets that are not decided yet.
	Tentative int64
	// Sold ones are sold, less those that were refunded.
	Sold int64
	// InTransit ones are on their way between buckets.
	InTransit int64
	// Added is what Init and Add have put on sale in all.
	Added int64
}

// Unaccounted is what is missing: 0, unless Redis has forgotten something.
func (u Units) Unaccounted() int64 {
	return u.Added - u.Free - u.Reserved - u.Tentative - u.Sold - u.InTransit
}

// A View is a stock as it was at one moment.
type View struct {
	Units
	// Live is the number of orders that are tentative or reserved, and Due of those
	// among them whose time is over and which nobody has swept yet.
	Live, Due int64
	// Unacknowledged is the number of expired orders that Expired still lists.
	Unacknowledged int64
	// Remembered is the number of orders, refunds and deliveries in Redis.
	Remembered int64
	// Buckets are the same units, bucket by bucket.
	Buckets []Units
}

// View reads where the units are, in one step.
func (s *Stock) View(ctx context.Context) (View, error) {
	m, err := s.look(ctx, func(c *config) (*scripts.Script, []string, []string) {
		return scripts.StockView, []string{c.keys[0], c.keys[1], c.keys[2], c.keys[4]}, []string{c.id}
	})
	var n []int64
	if err == nil {
		n, err = m.AsIntSlice()
	}
	if err == nil && len(n) != 9 {
		err = fmt.Errorf("a reply of %d parts", len(n))
	}
	if err != nil {
		return View{}, s.fail("view", "", err)
	}
	units := Units{Free: n[0], Reserved: n[1], Tentative: n[2], Sold: n[3], Added: n[4]}
	return View{Units: units, Live: n[5], Due: n[6], Unacknowledged: n[7], Remembered: n[8], Buckets: []Units{units}}, nil
}

// A Report compares a stock with the books of its owner.
type Report struct {
	View
	// Drift is how many units are sold here and not in the owner's books: fewer than
	// none if Redis has forgotten sales, as it can in a failover, or if some were
	// paid and not confirmed yet.
	Drift int64
}

// Reconcile compares the stock with a count of the caller's: how many units are
// sold, less those refunded, by the books that count, such as the database of
// orders. It changes nothing. While purchases are under way the two differ for a
// moment; [Stock.Orders] shows which orders they differ in.
func (s *Stock) Reconcile(ctx context.Context, sold int64) (Report, error) {
	v, err := s.View(ctx)
	if err != nil {
		return Report{}, err
	}
	return Report{View: v, Drift: v.Sold - sold}, nil
}

const (
	scanned = 100 // orders that are read at once
	swept   = 100 // orders that are swept at once
)

// Orders goes through all orders that are remembered, whatever their state, in no
// order: to compare them with the books, say. An order that is there all the while
// comes once or, rarely, more than once. It reads about 100 at a time; ctx bounds
// the whole.
func (s *Stock) Orders(ctx context.Context) iter.Seq2[Reservation, error] {
	return func(yield func(Reservation, error) bool) {
		for cursor := "0"; ; {
			m, err := s.look(ctx, func(c *config) (*scripts.Script, []string, []string) {
				return scripts.StockScan, c.keys[:2], []string{c.id, cursor, strconv.Itoa(scanned)}
			})
			var part []Reservation
			if err == nil {
				list, _ := m.ToArray()
				if len(list) != 3 {
					err = fmt.Errorf("a reply of %d parts", len(list))
				} else {
					now, _ := list[0].ToInt64()
					fields, _ := list[2].AsStrSlice()
					cursor, err = list[1].ToString()
					part = readOrders(time.UnixMilli(now), fields)
				}
			}
			if err != nil {
				yield(Reservation{}, s.fail("orders of", "", err))
				return
			}
			for _, r := range part {
				if !yield(r, nil) {
					return
				}
			}
			if cursor == "0" {
				return
			}
		}
	}
}

// readOrders reads the fields of an orders hash that are orders.
func readOrders(now time.Time, fields []string) (list []Reservation) {
	for pair := range slices.Chunk(fields, 2) {
		id, ok := strings.CutPrefix(pair[0], "o:")
		if !ok || len(pair) < 2 {
			continue
		}
		part := strings.SplitN(pair[1], " ", 5)
		if len(part) < 5 || part[1] == "0" { // cancelled before it came
			continue
		}
		r := Reservation{Order: Order{ID: id, Buyer: part[4]}, State: states[part[0]], At: now}
		r.Order.Qty, _ = strconv.ParseInt(part[1], 10, 64)
		r.Refunded, _ = strconv.ParseInt(part[2], 10, 64)
		at, _ := strconv.ParseInt(part[3], 10, 64)
		r.Until = time.UnixMilli(at)
		if r.State == Reserved || r.State == Tentative {
			if r.Left = r.Until.Sub(now); r.Left <= 0 {
				r.State, r.Left = Expired, 0
			}
		}
		list = append(list, r)
	}
	return list
}

// Expired lists orders that have expired and were not acknowledged, those that
// expired longest ago first, at most so many (from 1 to 1000). It is an outbox:
// tell the buyers, then [Stock.Acknowledge]; what is not acknowledged is listed
// again. An order that is forgotten leaves the list. Expired sweeps first.
func (s *Stock) Expired(ctx context.Context, most int) ([]Reservation, error) {
	const call = "expired orders of"
	if most < 1 || most > 1000 {
		return nil, s.fail(call, "", optionError("most is %d, from 1 to 1000", most))
	}
	_, _, list, err := s.sweep(ctx, most)
	if err != nil {
		return nil, s.fail(call, "", err)
	}
	return list, nil
}

// Acknowledge takes expired orders off the list of [Stock.Expired].
func (s *Stock) Acknowledge(ctx context.Context, orders ...string) error {
	for part := range slices.Chunk(orders, scanned) {
		_, err := s.look(ctx, func(c *config) (*scripts.Script, []string, []string) {
			return scripts.StockAcknowledge, []string{c.keys[0], c.keys[4]}, append([]string{c.id}, part...)
		})
		if err != nil {
			return s.fail("acknowledge orders of", "", err)
		}
	}
	return nil
}

// Sweep puts the units of all orders whose time is over on sale again, and forgets
// what has been remembered long enough. Reserve does the first by itself when
// units are short, so Sweep is for what nobody asks for: run it every minute, say,
// in any or all processes. It returns how many orders expired.
func (s *Stock) Sweep(ctx context.Context) (int, error) {
	total := 0
	for {
		n, forgotten, _, err := s.sweep(ctx, 0)
		if err != nil {
			return total, s.fail("sweep", "", err)
		}
		if total += n; n < swept && forgotten < swept {
			return total, nil
		}
	}
}

// sweep sweeps once, and lists expired orders.
func (s *Stock) sweep(ctx context.Context, most int) (n, forgotten int, list []Reservation, err error) {
	m, err := s.perform(ctx, scripts.StockSweep, []string{strconv.Itoa(swept), strconv.Itoa(most)})
	if err != nil {
		return 0, 0, nil, err
	}
	parts, err := m.ToArray()
	if err != nil || len(parts) != 3 {
		return 0, 0, nil, errors.Join(holdfast.ErrUnknown, err)
	}
	one, _ := parts[0].ToInt64()
	two, _ := parts[1].ToInt64()
	orders, err := parts[2].ToArray()
	for o := range slices.Chunk(orders, 4) {
		r := Reservation{State: Expired}
		r.Order.ID, _ = o[0].ToString()
		r.Order.Qty, _ = o[1].ToInt64()
		at, _ := o[2].ToInt64()
		r.Until = time.UnixMilli(at)
		r.Order.Buyer, _ = o[3].ToString()
		list = append(list, r)
	}
	return int(one), int(two), list, err
}

// Watch calls tell with the number of units on sale: at once, and then whenever
// there are none any more or some again. It waits for messages and does not poll;
// what comes and goes between two looks is not told. It returns when ctx ends, with
// [holdfast.ErrClosed] when the session is closed, or with the first error that
// does not pass.
func (s *Stock) Watch(ctx context.Context, tell func(free int64)) error {
	c, err := s.open(ctx)
	if err != nil {
		return s.fail("watch", "", err)
	}
	w := s.wait(c)
	defer w.stop()
	for told, last := false, int64(0); ; {
		v, err := s.View(ctx)
		longest := s.tools.LongestSleep()
		if longest == 0 {
			longest = time.Hour
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			if !told || (v.Free == 0) != (last == 0) {
				told, last = true, v.Free
				tell(v.Free)
			}
		case errors.Is(err, holdfast.ErrUnavailable):
			longest = time.Second
		default:
			return err
		}
		if !w.sleep(ctx, longest) {
			return ctx.Err()
		}
	}
}
