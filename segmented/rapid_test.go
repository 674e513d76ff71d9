package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/internal/stockmodel"
	"github.com/holdfast-go/holdfast/segmented"
)

// A machine does to a stock and to its model the same, at random. Orders, refunds
// and deliveries come from small sets, so most calls are repeats of earlier ones or
// late copies of them.
type machine struct {
	stocks   []*segmented.Stock // of different processes
	model    *stockmodel.Stock
	now      func() int64 // the server's clock, milliseconds
	pass     func(ms int64)
	exact    bool // the clock stands still unless it is told to pass
	unit     int64
	remember int64
	buckets  int
}

const (
	sec = int64(1000)
	day = 24 * 3600 * sec
)

// words are the errors for the words of the model.
var words = map[string]error{
	"soldout": segmented.ErrSoldOut, "limit": segmented.ErrLimit, "conflict": segmented.ErrConflict, "expired": segmented.ErrExpired,
	"unknown": segmented.ErrUnknownOrder, "cancelled": segmented.ErrState, "sold": segmented.ErrState, "reserved": segmented.ErrState,
}

func (m *machine) stock(t *rapid.T) *segmented.Stock {
	return m.stocks[rapid.IntRange(0, len(m.stocks)-1).Draw(t, "process")]
}

// order draws an order's id; with a limit it has the buyer's in it.
func (m *machine) order(t *rapid.T) string {
	if m.model.Limit > 0 {
		return segmented.OrderID(buyer(t), fmt.Sprint("o", rapid.IntRange(0, 2).Draw(t, "order")))
	}
	return fmt.Sprint("o", rapid.IntRange(0, 5).Draw(t, "order"))
}

func buyer(t *rapid.T) string { return fmt.Sprint("b", rapid.IntRange(0, 2).Draw(t, "buyer")) }

func qty(t *rapid.T) int64            { return rapid.SampledFrom([]int64{1, 1, 1, 2, 3}).Draw(t, "qty") }
func duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func (m *machine) window(t *rapid.T) int64 {
	return m.unit * rapid.SampledFrom([]int64{1, 3, 60}).Draw(t, "window")
}

// same compares an answer with the model's.
func (m *machine) same(t *rapid.T, call string, r segmented.Reservation, err error, a stockmodel.Answer) {
	t.Helper()
	if want := words[a.Word]; want != nil {
		var e *segmented.StockError
		if !errors.Is(err, want) || !errors.As(err, &e) {
			t.Fatalf("%s: %v, want %v (%+v)\n%v", call, err, want, a, m.model)
		}
		if e.Left != a.Left {
			t.Fatalf("%s: %v says %d left, want %d\n%v", call, err, e.Left, a.Left, m.model)
		}
		if a.Word == "unknown" || a.Order.State == 0 {
			return
		}
	} else if err != nil {
		t.Fatalf("%s: %v, want %+v\n%v", call, err, a, m.model)
	}
	if a.Order.State == 0 {
		return
	}
	state := map[byte]segmented.State{
		't': segmented.Tentative, 'r': segmented.Reserved, 's': segmented.Sold, 'x': segmented.Cancelled, 'e': segmented.Expired,
	}[a.Order.State]
	near := func(at time.Time, ms int64) bool {
		d := at.UnixMilli() - ms
		return d == 0 || !m.exact && d >= 0 && d < 2000
	}
	if r.State != state || r.Order.Qty != a.Order.Units || r.Order.Buyer != a.Order.Buyer || r.Refunded != a.Order.Refunded ||
		r.Replayed != a.Replayed || !near(r.Until, a.Order.At) {
		t.Fatalf("%s: %+v, want %+v\n%v", call, r, a, m.model)
	}
	if r.State == segmented.Reserved && r.Left != r.Until.Sub(r.At) || r.State > segmented.Reserved && r.Left != 0 {
		t.Fatalf("%s: %+v has %v left", call, r, r.Left)
	}
}

func (m *machine) actions() map[string]func(*rapid.T) {
	ctx := context.Background()
	actions := map[string]func(*rapid.T){
		"reserve": func(t *rapid.T) {
			o := segmented.Order{ID: m.order(t), Qty: qty(t), Window: duration(m.window(t))}
			if m.model.Limit > 0 {
				o.Buyer, _, _ = strings.Cut(o.ID, "/")
			} else {
				o.Buyer = buyer(t)
			}
			a := m.model.Reserve(m.now(), m.remember, o.ID, o.Qty, o.Window.Milliseconds(), o.Buyer, 'r')
			r, err := m.stock(t).Reserve(ctx, o)
			if a.Word == "limit" && m.model.Free < o.Qty && errors.Is(err, segmented.ErrSoldOut) {
				a = stockmodel.Answer{Word: "soldout", Left: m.model.Free} // which is true as well
			}
			m.same(t, fmt.Sprintf("reserve %+v", o), r, err, a)
		},
		"confirm": func(t *rapid.T) {
			id := m.order(t)
			a := m.model.Confirm(m.now(), m.remember, id)
			r, err := m.stock(t).Confirm(ctx, id)
			m.same(t, "confirm "+id, r, err, a)
		},
		"cancel": func(t *rapid.T) {
			id := m.order(t)
			a := m.model.Cancel(m.now(), m.remember, 600*sec, id)
			r, err := m.stock(t).Cancel(ctx, id)
			m.same(t, "cancel "+id, r, err, a)
		},
		"extend": func(t *rapid.T) {
			id, d := m.order(t), m.window(t)
			a := m.model.Extend(m.now(), m.remember, id, d)
			r, err := m.stock(t).Extend(ctx, id, duration(d))
			m.same(t, fmt.Sprint("extend ", id, " by ", d), r, err, a)
		},
		"refund": func(t *rapid.T) {
			f := segmented.Refund{ID: fmt.Sprint("f", rapid.IntRange(0, 3).Draw(t, "refund")), Order: m.order(t), Qty: qty(t)}
			a := m.model.Refund(m.now(), m.remember, f.Order, f.ID, f.Qty)
			r, err := m.stock(t).Refund(ctx, f)
			m.same(t, fmt.Sprintf("refund %+v", f), r, err, a)
		},
		"add": func(t *rapid.T) {
			d := segmented.Delivery{ID: fmt.Sprint("d", rapid.IntRange(0, 2).Draw(t, "delivery")), Qty: qty(t)}
			a := m.model.Add(m.now(), m.remember, d.ID, d.Qty)
			m.same(t, fmt.Sprintf("add %+v", d), segmented.Reservation{}, m.stock(t).Add(ctx, d), a)
		},
		"get": func(t *rapid.T) {
			id := m.order(t)
			a := m.model.Get(m.now(), m.remember, id)
			r, err := m.stock(t).Get(ctx, id)
			m.same(t, "get "+id, r, err, a)
		},
		"pass": func(t *rapid.T) {
			m.pass(m.unit * rapid.SampledFrom([]int64{1, 2, 4, 60}).Draw(t, "halves") / 2)
			// What may be forgotten, and is not yet, would be neither here nor there.
			m.sweep(t)
		},
		"sweep": func(t *rapid.T) {
			m.model.Pass(m.now(), m.remember)
			m.sweep(t)
		},
		"outbox": func(t *rapid.T) {
			now := m.now()
			m.model.Pass(now, m.remember)
			list, err := m.stock(t).Expired(ctx, 100)
			m.model.Trim(now)
			if err != nil || len(list) != len(m.model.Unacked) {
				t.Fatalf("expired: %v %v, want %v", list, err, m.model)
			}
			for _, r := range list {
				if !m.model.Unacked[r.Order.ID] {
					t.Fatalf("expired: %v, want %v", list, m.model)
				}
				if rapid.Bool().Draw(t, "acknowledge") {
					if err := m.stock(t).Acknowledge(ctx, r.Order.ID); err != nil {
						t.Fatal(err)
					}
					delete(m.model.Unacked, r.Order.ID)
				}
			}
		},
		"resize": func(t *rapid.T) {
			if err := m.stock(t).Resize(ctx, rapid.IntRange(1, m.buckets).Draw(t, "live")); err != nil {
				t.Fatal(err)
			}
		},
		"": func(t *rapid.T) {
			if err := m.model.Check(); err != nil {
				t.Fatal(err)
			}
			m.view(t, false)
		},
	}
	if m.model.Limit == 0 { // baskets of one line: what others see of them
		actions["basket"] = func(t *rapid.T) {
			b := segmented.Basket{ID: m.order(t), Buyer: buyer(t), Window: duration(m.window(t)), Lines: []segmented.Line{{Stock: m.stock(t), Qty: qty(t)}}}
			a := m.model.Reserve(m.now(), m.remember, b.ID, b.Lines[0].Qty, 5*sec, b.Buyer, 't')
			if a.Word == "ok" {
				replay := a.Order.State != 't'
				a = m.model.Settle(m.now(), m.remember, b.ID, b.Window.Milliseconds())
				if replay != a.Replayed {
					t.Fatalf("the model is wrong: %v", m.model)
				}
			}
			list, err := b.Reserve(ctx)
			var r segmented.Reservation
			if err == nil {
				r = list[0]
			} else {
				a.Order.State = 0
			}
			m.same(t, fmt.Sprintf("basket %+v", b), r, err, a)
		}
	}
	return actions
}

// sweep forgets; it ends nothing that is not over in the model too.
func (m *machine) sweep(t *rapid.T) {
	t.Helper()
	now := m.now() // before the server's
	due := m.model.Clone()
	due.Trim(now)
	over := m.model.Clone()
	over.Pass(now, m.remember)
	if m.remember == 7*day && len(due.Orders) == len(m.model.Orders) && over.Free != m.model.Free {
		return // leave what is over to be found by other calls, which is when they begin to remember it
	}
	m.model.Pass(now, m.remember)
	if _, err := m.stock(t).Sweep(context.Background()); err != nil {
		t.Fatal(err)
	}
	m.model.Trim(now)
	m.view(t, true)
}

// view compares the sums. What is over but not swept counts as reserved.
func (m *machine) view(t *rapid.T, swept bool) {
	t.Helper()
	v, err := m.stocks[0].View(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if v.Unaccounted() != 0 || v.Free < 0 || v.Reserved < 0 || v.Tentative != 0 || v.Sold < 0 || v.InTransit != 0 {
		t.Fatalf("%+v, want %v", v, m.model)
	}
	if v.Sold != m.model.Sold || v.Added != m.model.Added || v.Free+v.Reserved != m.model.Free+m.model.Reserved || v.Reserved < m.model.Reserved && m.exact {
		t.Fatalf("%+v, want %v", v, m.model)
	}
	if swept && (v.Free != m.model.Free || v.Due != 0) {
		t.Fatalf("%+v after a sweep, want %v", v, m.model)
	}
}

// run runs the machine on new stocks of a server.
func runMachine(t *testing.T, hfs []*holdfast.Session, now func() int64, pass func(ms int64), unit int64) {
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		limit := rapid.SampledFrom([]int64{0, 2, 4}).Draw(rt, "limit")
		units := rapid.Int64Range(0, 8).Draw(rt, "units")
		buckets := rapid.SampledFrom([]int{1, 1, 3}).Draw(rt, "buckets")
		m := &machine{model: stockmodel.New(units, limit), now: now, pass: pass, exact: unit == sec, unit: unit, remember: 7 * day, buckets: buckets}
		if rapid.Bool().Draw(rt, "forgets soon") {
			m.remember = 600 * sec
			m.pass = func(ms int64) { pass(ms * 10) }
		}
		for _, hf := range hfs {
			s, err := segmented.OpenStock(hf, fmt.Sprint(strings.ToLower(key(t)), n), segmented.StockOptions{
				Limit: limit, Buckets: buckets, Remember: duration(m.remember),
			})
			if err != nil {
				rt.Fatal(err)
			}
			if err := s.Init(context.Background(), units); err != nil {
				rt.Fatal(err)
			}
			m.stocks = append(m.stocks, s)
		}
		rt.Repeat(m.actions())
	})
}

func TestRapid_aStockDoesWhatItsModelDoes(t *testing.T) {
	srv := miniredis.RunT(t)
	clock := time.UnixMilli(1_700_000_000_000)
	srv.SetTime(clock)
	var hfs []*holdfast.Session
	for range 2 {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{srv.Addr()}, DisableCache: true, ForceSingleClient: true, AlwaysRESP2: true,
		})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		hfs = append(hfs, sessionOn(t, client))
	}
	runMachine(t, hfs, func() int64 { return clock.UnixMilli() }, func(ms int64) {
		clock = clock.Add(duration(ms))
		srv.SetTime(clock)
	}, sec)
}

// The same on a real server, whose clock can be turned but not stopped: its units
// of time are so long that a machine that is slow does not matter.
func TestRapid_onARealServer(t *testing.T) {
	clock, err := redistest.NewClock(t)
	if err != nil {
		t.Log("no C compiler, so no clock to turn: ", err)
		return
	}
	srv := redistest.Run(t, redistest.Options{Clock: clock})
	ahead := int64(0)
	hfs := []*holdfast.Session{session(t, srv.Addr()), session(t, srv.Addr())}
	runMachine(t, hfs, func() int64 { return time.Now().UnixMilli() + ahead }, func(ms int64) {
		clock.Jump(duration(ms))
		ahead += ms
	}, 100*sec)
}
