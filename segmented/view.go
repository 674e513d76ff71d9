package segmented

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

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
	// Buckets are the same units, bucket by bucket. Of a bucket Added is what it has had
	// with what came from others and without what it sent, and InTransit is what it has
	// sent and does not know to have arrived.
	Buckets []Units
}

// View reads where the units are. Of a stock with several buckets it reads one after
// the other, and again if units were on their way between them meanwhile, but not for
// ever: the sum is exact even then, and InTransit may be less than 0.
func (s *Stock) View(ctx context.Context) (View, error) {
	var now cut
	quiet := false
	err := s.withConfig(ctx, func(c *config) (err error) {
		for range looks {
			before := now
			if now, err = s.look(ctx, c, nil); err != nil || len(now) == 1 {
				break
			}
			_, _, was := before.sum()
			_, _, sent := now.sum()
			still := now.still(before)
			// What the first look saw on its way may arrive during the second, after that
			// has looked into where it goes.
			if quiet = still && len(was)+len(sent) == 0; quiet || still && len(sent) > 0 {
				break
			}
		}
		return err
	})
	if err != nil {
		return View{}, s.fail("view", "", err)
	}
	var v View
	if v.Units, v.Due, _ = now.sum(); quiet {
		v.InTransit = 0 // what is missing now is on its way nowhere
	}
	for _, p := range now {
		v.Live += p.live
		v.Unacknowledged += p.expired
		v.Remembered += p.fields
		v.Buckets = append(v.Buckets, p.units)
	}
	return v, nil
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
		for i, cursor := 0, "0"; ; {
			var part []Reservation
			last := false
			err := s.withConfig(ctx, func(c *config) error {
				if i >= len(c.buckets) { // another stock has taken its place
					last = true
					return nil
				}
				last = i == len(c.buckets)-1
				replies, err := s.each(ctx, holdfast.ErrUnavailable, scripts.StockScan, func(b *bucket) []string { return b.keys[:2] },
					[]job{{&c.buckets[i], []string{c.id, cursor, strconv.Itoa(scanned)}}})
				if err == nil {
					cursor, part, err = readScan(replies[0])
				}
				return err
			})
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
				if last {
					return
				}
				i++
			}
		}
	}
}

// readScan reads {now, where to go on, fields}.
func readScan(m rueidis.RedisMessage) (cursor string, part []Reservation, err error) {
	list, err := m.ToArray()
	if err == nil && len(list) != 3 {
		err = fmt.Errorf("a reply of %d parts", len(list))
	}
	if err != nil {
		return "", nil, err
	}
	now, err1 := list[0].ToInt64()
	cursor, err2 := list[1].ToString()
	fields, err3 := list[2].AsStrSlice()
	return cursor, readOrders(time.UnixMilli(now), fields), errors.Join(err1, err2, err3)
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
	var list []Reservation
	err := s.withConfig(ctx, func(c *config) (err error) {
		_, list, err = s.sweep(ctx, c, most)
		return err
	})
	if err != nil {
		return nil, s.fail(call, "", err)
	}
	slices.SortStableFunc(list, func(a, b Reservation) int { return a.Until.Compare(b.Until) })
	return list[:min(len(list), most)], nil
}

// Acknowledge takes expired orders off the list of [Stock.Expired].
func (s *Stock) Acknowledge(ctx context.Context, orders ...string) error {
	err := s.withConfig(ctx, func(c *config) error {
		lists := map[*bucket][]string{}
		for _, id := range orders {
			b := c.home(id)
			lists[b] = append(lists[b], id)
		}
		var jobs []job
		for b, list := range lists {
			for part := range slices.Chunk(list, scanned) {
				jobs = append(jobs, job{b, append([]string{c.id}, part...)})
			}
		}
		_, err := s.each(ctx, holdfast.ErrUnavailable, scripts.StockAcknowledge, func(b *bucket) []string { return []string{b.keys[0], b.keys[4]} }, jobs)
		return err
	})
	if err != nil {
		return s.fail("acknowledge orders of", "", err)
	}
	return nil
}

// Sweep puts the units of all orders whose time is over on sale again, and forgets
// what has been remembered long enough. Reserve does the first by itself when
// units are short, so Sweep is for what nobody asks for: have [Stock.Sweeper] do it,
// in any or all processes. It also finishes what a process that died had begun to
// move between buckets. It returns how many orders expired.
func (s *Stock) Sweep(ctx context.Context) (int, error) {
	total := 0
	err := s.withConfig(ctx, func(c *config) error {
		n, _, err := s.sweep(ctx, c, 0)
		total += n
		if err != nil {
			return err
		}
		return s.tidy(ctx, c)
	})
	if err != nil {
		return total, s.fail("sweep", "", err)
	}
	return total, nil
}

// Sweeper sweeps every so often, give or take a fifth, until ctx ends, and returns
// its error then, or [holdfast.ErrClosed] once the session is closed, or the first
// error that does not pass. What [holdfast.ErrUnavailable] or [ErrNotOpen] keeps it
// from is for the next time. Any number of processes may have one: they do each
// other's work.
func (s *Stock) Sweeper(ctx context.Context, every time.Duration) error {
	if every < time.Millisecond {
		return s.fail("sweep", "", optionError("every is %v, at least 1ms", every))
	}
	w := waiters{closed: s.tools.Closed}
	for {
		_, err := s.Sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, holdfast.ErrUnknown) && !errors.Is(err, ErrNotOpen):
			return err
		}
		if !w.sleep(ctx, every*4/5+rand.N(every*2/5+1)) {
			return ctx.Err()
		}
	}
}

// sweep sweeps all buckets, and lists expired orders, so many of each.
func (s *Stock) sweep(ctx context.Context, c *config, most int) (n int, list []Reservation, err error) {
	lists := make([][]Reservation, len(c.buckets))
	var due []*bucket
	for i := range c.buckets {
		due = append(due, &c.buckets[i])
	}
	for len(due) > 0 {
		jobs := make([]job, len(due))
		for i, b := range due {
			jobs[i] = job{b, s.args(ctx, c, b, strconv.Itoa(swept), strconv.Itoa(most))}
		}
		replies, err := s.each(ctx, holdfast.ErrUnknown, scripts.StockSweep, all, jobs)
		if err != nil {
			return n, nil, err
		}
		var more []*bucket
		for i, m := range replies {
			ended, forgotten, expired, err := readSweep(m)
			if err != nil {
				return n, nil, errors.Join(holdfast.ErrUnknown, err)
			}
			n += ended
			lists[due[i].number] = expired
			if ended >= swept || forgotten >= swept {
				more = append(more, due[i])
			}
		}
		due = more
	}
	return n, slices.Concat(lists...), nil
}

// readSweep reads {swept, forgotten, {order, units, at, buyer, …}}.
func readSweep(m rueidis.RedisMessage) (ended, forgotten int, list []Reservation, err error) {
	parts, err := m.ToArray()
	if err == nil && len(parts) != 3 {
		err = fmt.Errorf("a reply of %d parts", len(parts))
	}
	if err != nil {
		return 0, 0, nil, err
	}
	one, err1 := parts[0].ToInt64()
	two, err2 := parts[1].ToInt64()
	orders, err3 := parts[2].ToArray()
	for o := range slices.Chunk(orders, 4) {
		r := Reservation{State: Expired}
		r.Order.ID, _ = o[0].ToString()
		r.Order.Qty, _ = o[1].ToInt64()
		at, _ := o[2].ToInt64()
		r.Until = time.UnixMilli(at)
		r.Order.Buyer, _ = o[3].ToString()
		list = append(list, r)
	}
	return int(one), int(two), list, errors.Join(err1, err2, err3)
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
	var w waiters
	defer w.stop()
	for i := range c.buckets {
		w.listen(s, &c.buckets[i])
	}
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
			free := v.Free + max(v.InTransit, 0)
			if !told || (free == 0) != (last == 0) {
				told, last = true, free
				tell(free)
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
