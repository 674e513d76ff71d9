package segmented

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/lease"
	"github.com/holdfast-go/holdfast/scripts"
)

// combineMost is how many reservations one script does at most; the server's other
// clients have to wait for it.
const combineMost = 128

// A bucket is a part of a stock. All its keys are in one slot.
type bucket struct {
	number  int
	text    string   // the number
	keys    []string // totals, orders, ends, forget, expired, buyers
	channel string
	reserve *core.Combiner
}

func (s *Stock) bucket(i int) bucket {
	b := bucket{number: i, text: strconv.Itoa(i)}
	tag := "{" + s.name + ":" + b.text + "}"
	for _, part := range []string{"units", "orders", "ends", "forget", "expired", "buyers"} {
		b.keys = append(b.keys, "holdfast_stock_"+part+":"+tag)
	}
	b.channel = "holdfast_stock:" + tag
	b.reserve = s.tools.NewCombiner(scripts.StockReserveBatch, combineMost, s.tools.Timeout)
	return b
}

// OrderID returns the id of an order of a stock with a limit for each buyer: the
// buyer's id, a slash, and the order's own, which must have none.
func OrderID(buyer, order string) string { return buyer + "/" + order }

// checkOrder checks that an order can be found by its id.
func (c *config) checkOrder(o Order) error {
	switch {
	case c.limit == 0:
		return nil
	case o.Buyer == "":
		return optionError("the stock has a limit of %d for each buyer, and the order names none", c.limit)
	case len(o.ID) < len(o.Buyer)+2 || strings.LastIndexByte(o.ID, '/') != len(o.Buyer) || o.ID[:len(o.Buyer)] != o.Buyer:
		return fmt.Errorf("%w: the stock has a limit for each buyer, so the id of an order has to be %q and something without a slash, and it is %q",
			holdfast.ErrName, o.Buyer+"/", o.ID)
	}
	return nil
}

// home is the bucket of an order: with a limit, that of its buyer.
func (c *config) home(order string) *bucket {
	if c.limit > 0 {
		if i := strings.LastIndexByte(order, '/'); i >= 0 {
			order = order[:i]
		}
	}
	return c.by(order)
}

// by is the bucket to which an id belongs.
func (c *config) by(id string) *bucket {
	if len(c.buckets) == 1 {
		return &c.buckets[0]
	}
	return &c.buckets[Hash(id)%uint64(len(c.buckets))]
}

// A part is what a bucket had when it was looked at.
type part struct {
	units                      Units // its own, InTransit as it knows it
	live, due, expired, fields int64
	given, taken, raised       int64
	undecided                  time.Duration // until the last tentative order is decided
	sent                       []transfer
	there                      []bool // of the orders that were asked for
}

// A transfer is units on their way from one bucket to another. Its number is its
// own among those from that bucket.
type transfer struct {
	from, to      int
	number, units int64
}

// A cut is what all buckets had, one after the other.
type cut []part

// look looks into all buckets. orders are those that are asked for in each, may be
// nil.
func (s *Stock) look(ctx context.Context, c *config, orders [][]string) (cut, error) {
	jobs := make([]job, len(c.buckets))
	for i := range jobs {
		jobs[i] = job{&c.buckets[i], []string{c.id}}
		if orders != nil {
			jobs[i].args = append(jobs[i].args, orders[i]...)
		}
	}
	replies, err := s.each(ctx, holdfast.ErrUnavailable, scripts.StockView, func(b *bucket) []string {
		return []string{b.keys[0], b.keys[1], b.keys[2], b.keys[4]}
	}, jobs)
	if err != nil {
		return nil, err
	}
	parts := make(cut, len(replies))
	for i, m := range replies {
		if parts[i], err = readPart(i, m); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

func readPart(i int, m rueidis.RedisMessage) (p part, err error) {
	lists, err := m.ToArray()
	if err == nil && len(lists) != 3 {
		err = fmt.Errorf("a reply of %d parts", len(lists))
	}
	var numbers [3][]int64
	for n := range lists {
		if err == nil {
			numbers[n], err = lists[n].AsIntSlice()
		}
	}
	if n := numbers[0]; err == nil && len(n) == 13 {
		p.units = Units{Free: n[0], Reserved: n[1], Tentative: n[2], Sold: n[3], Added: n[4]}
		p.live, p.due, p.expired, p.fields = n[5], n[6], n[7], n[8]
		p.given, p.taken, p.raised = n[9], n[10], n[11]
		p.undecided = time.Duration(n[12]) * time.Millisecond
	} else if err == nil {
		err = fmt.Errorf("a reply of %d numbers", len(n))
	}
	for t := range slices.Chunk(numbers[1], 3) {
		p.sent = append(p.sent, transfer{from: i, to: int(t[0]), number: t[1], units: t[2]})
		p.units.InTransit += t[2]
	}
	p.units.Added += p.taken - p.given + p.units.InTransit
	for _, is := range numbers[2] {
		p.there = append(p.there, is == 1)
	}
	return p, err
}

// sum adds up what is where.
func (c cut) sum() (u Units, due int64, sent []transfer) {
	for _, p := range c {
		u.Free += p.units.Free
		u.Reserved += p.units.Reserved
		u.Tentative += p.units.Tentative
		u.Sold += p.units.Sold
		u.Added += p.units.Added + p.given - p.taken - p.units.InTransit
		u.InTransit += p.given - p.taken
		due += p.due
		sent = append(sent, p.sent...)
	}
	return u, due, sent
}

// still reports whether no units came on sale, and none were on their way, between
// two looks: then there was a moment between them at which no bucket had more than
// what the first look saw.
func (c cut) still(before cut) bool {
	for i, p := range c {
		if len(before) != len(c) || p.raised != before[i].raised || p.given != before[i].given || p.taken != before[i].taken {
			return false
		}
	}
	return true
}

// Waiters hear of what happens to buckets.
type waiters struct {
	on     map[string]func()
	woken  chan struct{}
	closed chan struct{} // with the session
}

// listen has a bucket heard from now on.
func (w *waiters) listen(s *Stock, b *bucket) {
	if w.woken == nil {
		w.woken, w.closed, w.on = make(chan struct{}, 1), s.tools.Closed, map[string]func(){}
	}
	if w.on[b.channel] == nil {
		w.on[b.channel] = s.tools.Subscribe(b.channel, w)
	}
}

// Notify implements lease.Listener.
func (w *waiters) Notify(lease.Signal) {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

func (w *waiters) stop() {
	for _, end := range w.on {
		end()
	}
}

// sleep waits for news, at most for d, or for the session's end; false if ctx
// ended.
func (w *waiters) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d + time.Millisecond)
	defer t.Stop()
	select {
	case <-w.woken:
	case <-w.closed:
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	return true
}
