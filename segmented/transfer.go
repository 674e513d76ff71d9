package segmented

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/scripts"
)

// Units go from one bucket to another in three steps, each of them one script, each
// of which may be repeated, late or lost: the sender gives, which takes them off sale
// there; the receiver takes, once for each number; the sender notes that they have
// arrived. Until then anybody who sees the transfer may do the rest.

// fetch gets units for an order whose bucket is short of them: the transfers are to
// go with its next try. There may be none, and it is to be tried anyway.
func (s *Stock) fetch(ctx context.Context, c *config, home *bucket, o Order, w *waiters, tries int) ([]transfer, error) {
	a, err := s.asker.ask(ctx, o)
	switch {
	case err != nil:
		return nil, err
	case a.there:
		return nil, nil
	case a.refuses(o.Qty):
		return nil, &shortError{a.free}
	case len(a.cut) != len(c.buckets): // another stock's
		return nil, nil
	case a.free >= o.Qty:
		got, err := s.pull(ctx, c, home, o.Qty, a.cut)
		if errors.Is(err, ErrDamaged) {
			err = nil // or another stock has taken its place: the next look says which
		}
		if len(got) == 0 && tries > 0 {
			pause(ctx, tries)
		}
		return got, err
	}
	soonest := time.Duration(0)
	for i, p := range a.cut {
		if p.units.Tentative > 0 {
			w.listen(s, &c.buckets[i])
			if d := max(p.undecided, time.Millisecond); soonest == 0 || d < soonest {
				soonest = d
			}
		}
	}
	if soonest == 0 {
		pause(ctx, tries)
	} else if !w.sleep(ctx, soonest) {
		return nil, errors.Join(errUndecided, ctx.Err(), cause(ctx))
	}
	return nil, nil
}

// pull has the richest buckets send what home needs for an order of qty.
func (s *Stock) pull(ctx context.Context, c *config, home *bucket, qty int64, now cut) ([]transfer, error) {
	need := qty - now[home.number].units.Free
	donors := make([]int, 0, len(now))
	for i := range now {
		if i != home.number && now[i].units.Free > 0 {
			donors = append(donors, i)
		}
	}
	slices.SortFunc(donors, func(i, j int) int {
		if i < c.live != (j < c.live) { // no units are to rest there
			return cmp.Compare(j, i)
		}
		return cmp.Compare(now[j].units.Free, now[i].units.Free)
	})
	// Where units may rest, as many come as share the work with the sender.
	half, large := "0", "0"
	if home.number < c.live {
		half = "1"
	}
	if qty > 1 {
		large = "1"
	}
	var jobs []job
	for _, i := range donors {
		if need <= 0 {
			break
		}
		units := min(need, now[i].units.Free)
		need -= units
		b := &c.buckets[i]
		jobs = append(jobs, job{b, s.args(ctx, c, b, home.text, strconv.FormatInt(units, 10), half, b.text, large)})
	}
	return s.give(ctx, jobs, home.number)
}

// give has buckets send units to one.
func (s *Stock) give(ctx context.Context, jobs []job, to int) ([]transfer, error) {
	replies, err := s.each(ctx, holdfast.ErrUnavailable, scripts.StockGive, all, jobs)
	if err != nil {
		return nil, err
	}
	var given []transfer
	for i, m := range replies {
		n, err := m.AsIntSlice()
		if err == nil && len(n) != 3 {
			err = fmt.Errorf("a reply of %d numbers", len(n))
		}
		if err != nil {
			return nil, err
		}
		if n[0] > 0 {
			given = append(given, transfer{from: jobs[i].bucket.number, to: to, number: n[0], units: n[1]})
		}
	}
	return given, nil
}

// textOf is how scripts want transfers to one bucket.
func textOf(transfers []transfer) string {
	if len(transfers) == 0 {
		return ""
	}
	var b strings.Builder
	for _, t := range transfers {
		fmt.Fprintf(&b, "%d %d %d ", t.from, t.number, t.units)
	}
	return b.String()
}

// settle finishes transfers, whoever began them.
func (s *Stock) settle(ctx context.Context, c *config, sent []transfer) error {
	to := map[int][]transfer{}
	for _, t := range sent {
		if t.to >= len(c.buckets) {
			return fmt.Errorf("%w: %d units are on their way to bucket %d of %d", ErrDamaged, t.units, t.to, len(c.buckets))
		}
		to[t.to] = append(to[t.to], t)
	}
	jobs := make([]job, 0, len(to))
	for i, transfers := range to {
		b := &c.buckets[i]
		jobs = append(jobs, job{b, s.args(ctx, c, b, textOf(transfers))})
	}
	if _, err := s.each(ctx, holdfast.ErrUnavailable, scripts.StockTake, all, jobs); err != nil {
		return err
	}
	return s.arrived(ctx, c, sent)
}

// arrived has senders know that their units have arrived.
func (s *Stock) arrived(ctx context.Context, c *config, sent []transfer) error {
	jobs := make([]job, len(sent))
	for i, t := range sent {
		jobs[i] = job{&c.buckets[t.from], []string{c.id, strconv.Itoa(t.to), strconv.FormatInt(t.number, 10)}}
	}
	_, err := s.each(ctx, holdfast.ErrUnavailable, scripts.StockArrived, func(b *bucket) []string { return b.keys[:1] }, jobs)
	return err
}

// sweepDue sweeps the buckets that have orders whose time is over.
func (s *Stock) sweepDue(ctx context.Context, c *config, now cut) error {
	var jobs []job
	for i, p := range now {
		if p.due > 0 {
			b := &c.buckets[i]
			jobs = append(jobs, job{b, s.args(ctx, c, b, strconv.Itoa(swept), "0")})
		}
	}
	_, err := s.each(ctx, holdfast.ErrUnavailable, scripts.StockSweep, all, jobs)
	return err
}

// Resize says over how many buckets, the first ones, free units rest, from 1 to
// [StockOptions.Buckets], and moves them there; selling goes on meanwhile. It
// changes nothing else: an order stays where it is, and its bucket gets the units
// that it needs from where they rest. Fewer buckets are for the end of a sale, when
// few units are left and the way between buckets costs more than one server does.
//
// If it is interrupted, units are on sale wherever they are; call it again, or leave
// the rest to [Stock.Sweep].
//
// Errors: [holdfast.ErrOption] for a number out of range.
func (s *Stock) Resize(ctx context.Context, buckets int) error {
	err := s.withConfig(ctx, func(c *config) error {
		if buckets < 1 || buckets > len(c.buckets) {
			return optionError("%d buckets, from 1 to %d", buckets, len(c.buckets))
		}
		noted, err := s.count(ctx, scripts.StockResize, []string{s.key()}, c.id, strconv.Itoa(buckets))
		if err != nil {
			return err
		}
		if noted == 0 {
			return fmt.Errorf("%w: another has taken its place", ErrDamaged)
		}
		resized := *c
		resized.live = buckets
		s.config.CompareAndSwap(c, &resized)
		return s.balance(ctx, &resized)
	})
	if err != nil {
		return s.fail("resize", "", err)
	}
	return nil
}

// current is c with what other processes have recorded since: over how many buckets
// free units rest.
func (s *Stock) current(ctx context.Context, c *config) (*config, error) {
	now, err := s.recorded(ctx)
	switch {
	case err != nil:
		return nil, err
	case now == nil || now.id != c.id:
		return nil, fmt.Errorf("%w: another has taken its place", ErrDamaged)
	case now.live != c.live:
		s.config.CompareAndSwap(c, now)
	}
	return now, nil
}

// balance deals free units out evenly over the buckets where they may rest.
func (s *Stock) balance(ctx context.Context, c *config) error {
	if len(c.buckets) == 1 {
		return nil
	}
	c, err := s.current(ctx, c)
	if err != nil {
		return err
	}
	for range 4 { // buyers take some meanwhile
		now, err := s.look(ctx, c, nil)
		if err != nil {
			return err
		}
		u, _, sent := now.sum()
		if len(sent) > 0 {
			if err := s.settle(ctx, c, sent); err != nil {
				return err
			}
			continue
		}
		moves := c.moves(now, u.Free)
		if len(moves) == 0 {
			return nil
		}
		if err := s.move(ctx, c, moves); err != nil {
			return err
		}
	}
	return nil
}

// moves are the transfers that deal the free units out.
func (c *config) moves(now cut, free int64) (moves []transfer) {
	over := make([]int64, len(now)) // what each has too many
	for i, p := range now {
		over[i] = p.units.Free
		if i < c.live {
			over[i] -= share(free, c.live, i)
		}
	}
	to := 0
	for from := range over {
		for over[from] > 0 {
			for to < len(over) && over[to] >= 0 {
				to++
			}
			if to == len(over) {
				return moves
			}
			units := min(over[from], -over[to])
			moves = append(moves, transfer{from: from, to: to, units: units})
			over[from] -= units
			over[to] += units
		}
	}
	return moves
}

// move moves units.
func (s *Stock) move(ctx context.Context, c *config, moves []transfer) error {
	to := map[int][]job{}
	for _, m := range moves {
		b := &c.buckets[m.from]
		to[m.to] = append(to[m.to], job{b, s.args(ctx, c, b, strconv.Itoa(m.to), strconv.FormatInt(m.units, 10), "0", b.text, "0")})
	}
	var sent []transfer
	for i, jobs := range to {
		given, err := s.give(ctx, jobs, i)
		if err != nil {
			return err
		}
		sent = append(sent, given...)
	}
	if len(sent) == 0 {
		return nil
	}
	return s.settle(ctx, c, sent)
}

// tidy finishes what others have begun, and empties buckets where no units are to
// rest.
func (s *Stock) tidy(ctx context.Context, c *config) error {
	if len(c.buckets) == 1 {
		return nil
	}
	c, err := s.current(ctx, c)
	if err != nil {
		return err
	}
	now, err := s.look(ctx, c, nil)
	if err != nil {
		return err
	}
	if _, _, sent := now.sum(); len(sent) > 0 {
		if err := s.settle(ctx, c, sent); err != nil {
			return err
		}
	}
	var moves []transfer
	for i := c.live; i < len(now); i++ {
		if free := now[i].units.Free; free > 0 {
			moves = append(moves, transfer{from: i, to: i % c.live, units: free})
		}
	}
	if len(moves) == 0 {
		return nil
	}
	return s.move(ctx, c, moves)
}
