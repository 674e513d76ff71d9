package main

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/reentrant"
	"github.com/holdfast-go/holdfast/segmented"
)

const (
	// lease is how long both locks outlive a holder that is gone. It is short so
	// that the demo is: with 30 s the same things happen to whoever stands still for
	// a minute.
	lease = 200 * time.Millisecond
	// poll is how often the naive lock is tried. Tutorials sleep longer, which makes
	// it slower and changes nothing else.
	poll = 10 * time.Millisecond
	// window is how long the stock keeps a unit for an order: longer than the slow
	// purchases take, and shorter than a process is suspended.
	window = 5 * lease / 2
	// again is how long a buyer waits who finds all units sold or reserved.
	again = 50 * time.Millisecond
)

// A guard stands between the buyers and the units. Each process opens one.
type guard interface {
	// fill puts the units in stock, and left returns how many are not sold.
	fill(ctx context.Context, units int) error
	left(ctx context.Context) (int, error)
	// buy sells one unit, or says errSoldOut.
	buy(ctx context.Context, p purchase) error
	// sold returns the orders that were sold.
	sold(ctx context.Context) (orders, error)
	// close gives back what the guard holds.
	close()
}

// orders are what was sold: the unit of each order, from 1 on.
type orders map[string]int

// A purchase is what a buyer does to buy one unit.
type purchase struct {
	order string
	// begin is to be called when the buyer's turn has come.
	begin func()
	// pay is to be called once, with a context that ends when the guard knows that
	// it no longer guards.
	pay func(ctx context.Context) error
}

// A mode is one way to guard the sale.
type mode struct {
	name string
	// limit ends a sale that sells too slowly, or never sells out since units come
	// back.
	limit time.Duration
	// waits tells that there is a lock to wait for, sound that each unit is to be
	// sold once.
	waits, sound bool
	// swift tells that the sale could be over before the faults come, so that it has
	// to wait for them.
	swift bool
	// moral says why it came as it did.
	moral string
	open  func(ctx context.Context, client rueidis.Client, keys keys) (guard, error)
}

var modes = []mode{
	{
		name: "no lock", limit: 5 * time.Second, open: openNothing,
		moral: "Buyers who read the same stock sell the same unit, and a late write puts sold units back on sale.",
	},
	{
		name: "naive lock", limit: 12 * time.Second, waits: true, open: openNaive,
		moral: "Nobody renews the lock: it runs out under a holder that is slow or stands still, whose late write " +
			"puts sold units back on sale, and whose DEL frees the lock of the next one.",
	},
	{
		name: "Holdfast lock", limit: 30 * time.Second, waits: true, sound: true, open: openHoldfast,
		moral: "The slow purchases were carried by renewal, the killed process' lock was freed by its lease, " +
			"and what the suspended process wrote too late was refused by the fence.",
	},
	{
		name: "Holdfast stock", limit: 30 * time.Second, sound: true, swift: true, open: openStock,
		moral: "Nobody waits for anybody: each buyer reserves a unit and pays while others do. What the killed and the " +
			"suspended process had reserved went on sale again by itself, and a payment that came too late took nothing.",
	},
}

// A counter is the stock of the modes with a lock, or without: a number in Redis,
// which is read, lowered and written back, and a row for each order.
type counter struct {
	client rueidis.Client
	keys   keys
}

func (c counter) fill(ctx context.Context, units int) error {
	return c.client.Do(ctx, c.client.B().Set().Key(c.keys.Stock).Value(strconv.Itoa(units)).Build()).Error()
}

func (c counter) left(ctx context.Context) (int, error) {
	n, err := c.client.Do(ctx, c.client.B().Get().Key(c.keys.Stock).Build()).AsInt64()
	return int(n), err
}

func (c counter) sold(ctx context.Context) (orders, error) { return rows(ctx, c.client, c.keys.Orders) }

// A write stores a new stock and the row of the order in one atomic step.
type write func(ctx context.Context, keys, args []string) error

// body is the script of every write. That it is a script in all modes keeps a
// killed process from taking a unit without an order, so that what goes wrong is
// the guard's doing and nothing else.
const body = `
redis.call('SET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1`

// sell is the purchase under a lock: the same whichever it is.
func (c counter) sell(ctx, held context.Context, p purchase, write write) error {
	p.begin()
	unit, err := c.left(held)
	switch {
	case held.Err() != nil:
		return context.Cause(held)
	case err != nil:
		return err
	case unit <= 0:
		return errSoldOut
	}
	if err := p.pay(held); err != nil {
		return err
	}
	// Not with held, which would stop a write before it is sent once the loss of
	// the lock is known. A process can stand still between any check and the next
	// step, and then only the fence is left: this is that case, on purpose.
	return write(ctx, []string{c.keys.Stock, c.keys.Orders}, []string{strconv.Itoa(unit - 1), p.order, strconv.Itoa(unit)})
}

// plain is a write that nothing guards.
func plain(client rueidis.Client) write {
	script := rueidis.NewLuaScript(body)
	return func(ctx context.Context, keys, args []string) error {
		return script.Exec(ctx, client, keys, args).Error()
	}
}

// nothing lets everyone in at once.
type nothing struct {
	counter
	write write
}

func openNothing(_ context.Context, client rueidis.Client, keys keys) (guard, error) {
	return nothing{counter{client, keys}, plain(client)}, nil
}

func (n nothing) buy(ctx context.Context, p purchase) error {
	return n.sell(ctx, ctx, p, n.write)
}

func (nothing) close() {}

// naive is the lock of many tutorials: taken with SET NX PX, waited for by asking
// again, never renewed, and given back with DEL, whoever has it by then.
type naive struct {
	counter
	write write
}

func openNaive(_ context.Context, client rueidis.Client, keys keys) (guard, error) {
	return naive{counter{client, keys}, plain(client)}, nil
}

func (n naive) buy(ctx context.Context, p purchase) error {
	key := n.keys.Lock
	for {
		err := n.client.Do(ctx, n.client.B().Set().Key(key).Value("locked").Nx().Px(lease).Build()).Error()
		if err == nil {
			break
		}
		if !rueidis.IsRedisNil(err) {
			return err
		}
		if err := sleep(ctx, poll); err != nil {
			return err
		}
	}
	defer func() {
		n.client.Do(context.WithoutCancel(ctx), n.client.B().Del().Key(key).Build())
	}()
	return n.sell(ctx, ctx, p, n.write)
}

func (naive) close() {}

// openSession opens Holdfast. The loss of the suspended process is part of the
// show, and counted.
func openSession(client rueidis.Client) (*holdfast.Session, error) {
	return holdfast.New(client, holdfast.SessionOptions{Logger: slog.New(slog.DiscardHandler)})
}

// fenced is Holdfast: a lock that is renewed while the purchase lasts and whose
// context ends with it, and a write that Redis refuses if it comes too late.
type fenced struct {
	counter
	session *holdfast.Session
	lock    *reentrant.Lock
	script  *fence.Script
}

func openHoldfast(_ context.Context, client rueidis.Client, keys keys) (guard, error) {
	session, err := openSession(client)
	if err != nil {
		return nil, err
	}
	lock, err := reentrant.New(session, keys.Lock, holdfast.Options{
		Lease:          lease,
		Fencing:        true,
		TokenRetention: 10 * time.Minute, // nobody needs the token of a sale that is over
	})
	if err != nil {
		return nil, err
	}
	return &fenced{counter{client, keys}, session, lock, fence.NewScript(body)}, nil
}

func (f *fenced) buy(ctx context.Context, p purchase) error {
	held, lease, err := f.lock.Lock(ctx)
	if err != nil {
		return err
	}
	// Whether the lease was lost in the end does not matter: the fence has decided
	// about the write by then.
	defer lease.Unlock(ctx)
	return f.sell(ctx, held, p, func(ctx context.Context, keys, args []string) error {
		_, err := f.script.Exec(ctx, f.client, f.keys.Stock, lease.Token(), keys, args)
		return err
	})
}

func (f *fenced) close() { _ = f.session.Close(context.Background()) }

// stocked is what a real sale uses: no lock, but a stock that Redis counts, and
// orders that are reserved, paid and confirmed.
type stocked struct {
	client  rueidis.Client
	session *holdfast.Session
	stock   *segmented.Stock
	books   string // the orders, as the shop has written them down

	mu     sync.Mutex // guards what follows
	seen   segmented.View
	seenAt time.Time
}

func openStock(_ context.Context, client rueidis.Client, keys keys) (guard, error) {
	session, err := openSession(client)
	if err != nil {
		return nil, err
	}
	stock, err := segmented.OpenStock(session, keys.Goods, segmented.StockOptions{Window: window})
	if err != nil {
		return nil, err
	}
	return &stocked{client: client, session: session, stock: stock, books: keys.Orders}, nil
}

func (s *stocked) fill(ctx context.Context, units int) error { return s.stock.Init(ctx, int64(units)) }

func (s *stocked) left(ctx context.Context) (int, error) {
	v, err := s.stock.View(ctx)
	return int(v.Added - v.Sold), err
}

func (s *stocked) buy(ctx context.Context, p purchase) error {
	for {
		_, err := s.stock.Reserve(ctx, segmented.Order{ID: p.order, Qty: 1})
		if err == nil {
			break
		}
		if inDoubt(ctx, err) {
			continue
		}
		if !errors.Is(err, segmented.ErrSoldOut) {
			return err
		}
		// Who has reserved the last units may not pay.
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
	p.begin()
	if err := p.pay(ctx); err != nil {
		return err
	}
	_, err := s.stock.Confirm(ctx, p.order)
	for inDoubt(ctx, err) {
		_, err = s.stock.Confirm(ctx, p.order)
	}
	if err != nil {
		return err // if it came too late, the payment is given back
	}
	return s.client.Do(ctx, s.client.B().Hset().Key(s.books).FieldValue().FieldValue(p.order, "1").Build()).Error()
}

// inDoubt reports whether a call may be made again, since it has one effect however
// often it is made: it got no answer, as in a process that was suspended meanwhile.
func inDoubt(ctx context.Context, err error) bool {
	return ctx.Err() == nil && (errors.Is(err, holdfast.ErrUnknown) || errors.Is(err, holdfast.ErrUnavailable))
}

// wait waits for what may come back, or says errSoldOut if nothing can. The buyers
// of a process look together.
func (s *stocked) wait(ctx context.Context) error {
	if err := sleep(ctx, again); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.seenAt) >= again {
		v, err := s.stock.View(ctx)
		if err != nil {
			return err
		}
		s.seen, s.seenAt = v, time.Now()
	}
	if s.seen.Sold == s.seen.Added {
		return errSoldOut
	}
	return nil
}

// sold returns the orders in the books, and those of the stock that are not there:
// who is killed after Confirm has sold, and written nothing.
func (s *stocked) sold(ctx context.Context) (orders, error) {
	all, err := rows(ctx, s.client, s.books)
	if err != nil {
		return nil, err
	}
	for r, err := range s.stock.Orders(ctx) {
		switch {
		case err != nil:
			return nil, err
		case r.State == segmented.Sold:
			all[r.Order.ID] = 0
		}
	}
	number := 0 // the units of a stock have none
	for id := range all {
		number++
		all[id] = number
	}
	return all, nil
}

func (s *stocked) close() { _ = s.session.Close(context.Background()) }

// sleep waits unless ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
