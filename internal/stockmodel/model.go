// Package stockmodel says what a stock does if calls come one after the other, as
// plainly as possible. Tests compare the real thing with it. Whatever is over is
// over at once here; the scripts find it out when it matters, and must not be told
// apart by that.
package stockmodel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Stock is a stock of one bucket.
type Stock struct {
	Limit int64 // units for each buyer; 0: none

	Free, Reserved, Tentative, Sold, Added int64

	Orders   map[string]Order
	Requests map[string]Request // refunds by f:ID of ORDER, deliveries by a:ID
	Bought   map[string]int64   // by buyer, where there is a limit
	Unacked  map[string]bool    // expired orders
}

// An Order is one that is remembered.
type Order struct {
	State    byte // t, r, s, x or e, as in the scripts
	Units    int64
	Refunded int64
	At       int64 // milliseconds: the end of a live order, else its last change
	Buyer    string
	Forget   int64 // when it is forgotten, if it is not live
}

// A Request is a refund or a delivery.
type Request struct {
	Order  string
	Units  int64
	Forget int64
}

// An Answer is what a call says: the word of the script, what is left if that is a
// refusal, and the order.
type Answer struct {
	Word     string
	Left     int64
	Order    Order
	Replayed bool
}

// New returns a stock of so many units.
func New(units, limit int64) *Stock {
	return &Stock{
		Limit: limit, Free: units, Added: units,
		Orders: map[string]Order{}, Requests: map[string]Request{}, Bought: map[string]int64{}, Unacked: map[string]bool{},
	}
}

// Clone returns a copy.
func (s *Stock) Clone() *Stock {
	c := *s
	c.Orders, c.Requests = maps.Clone(s.Orders), maps.Clone(s.Requests)
	c.Bought, c.Unacked = maps.Clone(s.Bought), maps.Clone(s.Unacked)
	return &c
}

// String is the same for equal stocks only.
func (s *Stock) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "limit %d free %d reserved %d tentative %d sold %d added %d", s.Limit, s.Free, s.Reserved, s.Tentative, s.Sold, s.Added)
	for _, id := range slices.Sorted(maps.Keys(s.Orders)) {
		o := s.Orders[id]
		fmt.Fprintf(&b, "; %q %c %d-%d at %d of %q till %d", id, o.State, o.Units, o.Refunded, o.At, o.Buyer, o.Forget)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Requests)) {
		fmt.Fprintf(&b, "; %q %v", id, s.Requests[id])
	}
	for _, buyer := range slices.Sorted(maps.Keys(s.Bought)) {
		fmt.Fprintf(&b, "; %q has %d", buyer, s.Bought[buyer])
	}
	fmt.Fprintf(&b, "; unacknowledged %q", slices.Sorted(maps.Keys(s.Unacked)))
	return b.String()
}

// Check says what is wrong with the sums.
func (s *Stock) Check() error {
	var reserved, tentative int64
	for _, o := range s.Orders {
		switch o.State {
		case 'r':
			reserved += o.Units
		case 't':
			tentative += o.Units
		}
	}
	switch {
	case s.Free < 0 || s.Sold < 0:
		return fmt.Errorf("less than nothing: %v", s)
	case reserved != s.Reserved || tentative != s.Tentative:
		return fmt.Errorf("orders do not sum up: %v", s)
	case s.Free+s.Reserved+s.Tentative+s.Sold != s.Added:
		return fmt.Errorf("units do not sum up: %v", s)
	}
	return nil
}

// Pass lets everything end that is over at now. Remember is how long the ended
// are remembered.
func (s *Stock) Pass(now, remember int64) {
	for id, o := range s.Orders {
		if (o.State == 'r' || o.State == 't') && o.At <= now {
			s.drop(id, 'e', now, remember)
		}
	}
}

// Trim forgets what has been remembered long enough.
func (s *Stock) Trim(now int64) {
	for id, o := range s.Orders {
		if o.State != 'r' && o.State != 't' && o.Forget <= now {
			delete(s.Orders, id)
			delete(s.Unacked, id)
		}
	}
	for id, r := range s.Requests {
		if r.Forget <= now {
			delete(s.Requests, id)
		}
	}
}

func (s *Stock) buy(buyer string, units int64) {
	if s.Limit == 0 {
		return
	}
	if s.Bought[buyer] += units; s.Bought[buyer] <= 0 {
		delete(s.Bought, buyer)
	}
}

// drop ends a live order.
func (s *Stock) drop(id string, state byte, now, remember int64) {
	o := s.Orders[id]
	s.Free += o.Units
	s.buy(o.Buyer, -o.Units)
	if o.State == 't' {
		s.Tentative -= o.Units
		delete(s.Orders, id)
		return
	}
	s.Reserved -= o.Units
	if state == 'x' {
		o.At = now
	} else {
		s.Unacked[id] = true
	}
	o.State, o.Forget = state, now+remember
	s.Orders[id] = o
}

// Reserve takes units; mode is r or t.
func (s *Stock) Reserve(now, remember int64, id string, units, window int64, buyer string, mode byte) Answer {
	s.Pass(now, remember)
	if o, ok := s.Orders[id]; ok {
		switch {
		case o.State == 'x':
			return Answer{Word: "cancelled", Order: o, Replayed: true}
		case o.Units != units || o.Buyer != buyer || o.State == 't' && mode == 'r':
			return Answer{Word: "conflict", Left: o.Units, Order: o, Replayed: true}
		case o.State == 'e':
			return Answer{Word: "expired", Order: o, Replayed: true}
		}
		return Answer{Word: "ok", Order: o, Replayed: true}
	}
	switch {
	case s.Limit > 0 && s.Bought[buyer]+units > s.Limit:
		return Answer{Word: "limit", Left: s.Limit - s.Bought[buyer]}
	case s.Free < units && s.Free+s.Tentative >= units:
		return Answer{Word: "wait"}
	case s.Free < units:
		return Answer{Word: "soldout", Left: s.Free}
	}
	o := Order{State: mode, Units: units, At: now + window, Buyer: buyer}
	s.Free -= units
	if mode == 't' {
		s.Tentative += units
	} else {
		s.Reserved += units
	}
	s.buy(buyer, units)
	s.Orders[id] = o
	return Answer{Word: "ok", Order: o}
}

// known answers for an order that is not live and reserved.
func (s *Stock) known(id string) (o Order, a *Answer) {
	o, ok := s.Orders[id]
	switch {
	case !ok || o.Units == 0 || o.State == 't':
		return o, &Answer{Word: "unknown"}
	case o.State == 'x':
		return o, &Answer{Word: "cancelled", Order: o, Replayed: true}
	case o.State == 'e':
		return o, &Answer{Word: "expired", Order: o, Replayed: true}
	}
	return o, nil
}

// Settle decides a tentative order: reserved for window, or given back for 0.
func (s *Stock) Settle(now, remember int64, id string, window int64) Answer {
	s.Pass(now, remember)
	o, a := s.known(id)
	if o.State != 't' {
		if a != nil {
			return *a
		}
		return Answer{Word: "ok", Order: o, Replayed: true}
	}
	if window == 0 {
		s.drop(id, 'x', now, remember)
		o.State, o.At = 'x', now
		return Answer{Word: "cancelled", Order: o}
	}
	s.Tentative -= o.Units
	s.Reserved += o.Units
	o.State, o.At = 'r', now+window
	s.Orders[id] = o
	return Answer{Word: "ok", Order: o}
}

// Confirm sells.
func (s *Stock) Confirm(now, remember int64, id string) Answer {
	s.Pass(now, remember)
	o, a := s.known(id)
	if a != nil {
		return *a
	}
	if o.State == 's' {
		return Answer{Word: "ok", Order: o, Replayed: true}
	}
	s.Reserved -= o.Units
	s.Sold += o.Units
	o.State, o.At, o.Forget = 's', now, now+remember
	s.Orders[id] = o
	return Answer{Word: "ok", Order: o}
}

// Cancel gives back; an unknown order stays cancelled for some time.
func (s *Stock) Cancel(now, remember, unknown int64, id string) Answer {
	s.Pass(now, remember)
	o, ok := s.Orders[id]
	switch {
	case !ok:
		s.Orders[id] = Order{State: 'x', At: now, Forget: now + unknown}
		return Answer{Word: "unknown"}
	case o.Units == 0:
		return Answer{Word: "unknown"}
	case o.State == 's':
		return Answer{Word: "sold", Left: o.Units - o.Refunded, Order: o, Replayed: true}
	case o.State == 'x' || o.State == 'e':
		return Answer{Word: "ok", Order: o, Replayed: true}
	}
	s.drop(id, 'x', now, remember)
	return Answer{Word: "ok", Order: s.Orders[id]}
}

// Extend gives more time.
func (s *Stock) Extend(now, remember int64, id string, window int64) Answer {
	s.Pass(now, remember)
	o, a := s.known(id)
	if a != nil {
		return *a
	}
	if o.State == 's' {
		return Answer{Word: "sold", Left: o.Units - o.Refunded, Order: o, Replayed: true}
	}
	o.At = max(o.At, now+window)
	s.Orders[id] = o
	return Answer{Word: "ok", Order: o}
}

// Refund puts sold units on sale again.
func (s *Stock) Refund(now, remember int64, id, refund string, units int64) Answer {
	s.Pass(now, remember)
	request := "f:" + refund + " of " + id
	if r, ok := s.Requests[request]; ok {
		if r.Units != units {
			return Answer{Word: "conflict", Left: r.Units, Order: s.Orders[id], Replayed: true}
		}
		return Answer{Word: "ok", Order: s.Orders[id], Replayed: true}
	}
	o, ok := s.Orders[id]
	switch {
	case !ok || o.Units == 0:
		return Answer{Word: "unknown"}
	case o.State == 'x':
		return Answer{Word: "cancelled", Order: o}
	case o.State == 'e':
		return Answer{Word: "expired", Order: o}
	case o.State != 's':
		return Answer{Word: "reserved", Order: o}
	case units > o.Units-o.Refunded:
		return Answer{Word: "conflict", Left: o.Units - o.Refunded, Order: o}
	}
	s.Sold -= units
	s.Free += units
	s.buy(o.Buyer, -units)
	o.Refunded, o.At, o.Forget = o.Refunded+units, now, now+remember
	s.Orders[id] = o
	s.Requests[request] = Request{id, units, now + remember}
	return Answer{Word: "ok", Left: o.Units - o.Refunded, Order: o}
}

// Add puts more units on sale.
func (s *Stock) Add(now, remember int64, delivery string, units int64) Answer {
	s.Pass(now, remember)
	if r, ok := s.Requests["a:"+delivery]; ok {
		if r.Units != units {
			return Answer{Word: "conflict", Left: r.Units}
		}
		return Answer{Word: "ok", Replayed: true}
	}
	s.Added += units
	s.Free += units
	s.Requests["a:"+delivery] = Request{Units: units, Forget: now + remember}
	return Answer{Word: "ok"}
}

// Get reads.
func (s *Stock) Get(now, remember int64, id string) Answer {
	s.Pass(now, remember)
	o, ok := s.Orders[id]
	if !ok || o.Units == 0 {
		return Answer{Word: "unknown"}
	}
	return Answer{Word: "ok", Order: o}
}
