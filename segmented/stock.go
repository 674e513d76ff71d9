package segmented

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/core"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/lease"
	"github.com/holdfast-go/holdfast/scripts"
)

const (
	defaultWindow   = 10 * time.Minute
	defaultRemember = 7 * 24 * time.Hour
	// leastRemember is longer than a copy of a command can be under way.
	leastRemember = 10 * time.Minute
	// unknownRemember is how long an order that was cancelled before it came stays
	// cancelled.
	unknownRemember = 10 * time.Minute
	// initTime is how long a bucket may be made after its Init asked for leave.
	initTime = time.Minute
	maxUnits = 1e12
)

// StockOptions tune a stock. The zero value means every default.
type StockOptions struct {
	// Limit is how many units one buyer may have, reserved and sold ones together.
	// Default: no limit. Init records it; a process that comes with another one is
	// told [holdfast.ErrOption], and one that comes with 0 goes by the record.
	Limit int64

	// Window is how long units stay reserved for an order that does not say. Default
	// 10 minutes.
	Window time.Duration

	// Remember is how long orders, refunds and deliveries are remembered after their
	// end: a call that is repeated later than that is a new call, and a sold order
	// can be refunded no longer. Default 7 days, at least 10 minutes.
	Remember time.Duration
}

// A Stock is a number of units for sale. Each call is one script, which decides
// and counts in one step, and can be repeated without harm: orders, refunds and
// deliveries have ids, and one that was done before is answered as it was then.
// So what is sent to Redis is sent again until it is answered, and a caller that
// got no answer may call again, from any process.
//
// ctx bounds each call, and so does the session's Timeout. A call that failed is
// [holdfast.ErrUnavailable] if it was not done and [holdfast.ErrUnknown] if it may
// have been done, or be done yet. Every error is a [*StockError]. A Stock may be
// used from many goroutines.
type Stock struct {
	tools   core.Tools
	name    string
	options StockOptions
	config  atomic.Pointer[config]
	asker   asker
}

// config is what Init has recorded, and what follows from it.
type config struct {
	id      string
	units   int64
	limit   int64
	until   string // buckets may be made until then
	open    bool
	keys    []string // of the bucket: totals, orders, ends, forget, expired, buyers
	channel string
}

// OpenStock returns the stock of that name, with the session's prefix before it.
// It asks Redis nothing; a stock that does not exist yet is made by [Stock.Init].
//
// Errors: [holdfast.ErrName] for a name that is empty, too long, or has a brace;
// [holdfast.ErrOption]; [holdfast.ErrClosed].
func OpenStock(s *holdfast.Session, name string, o StockOptions) (*Stock, error) {
	stock := &Stock{options: o}
	fail := func(err error) (*Stock, error) {
		return nil, &StockError{Call: "open", Stock: name, Err: err}
	}
	if err := s.Equip(&stock.tools); err != nil {
		return fail(err)
	}
	stock.name = stock.tools.Prefix + name
	stock.asker.stock = stock
	if o.Window == 0 {
		stock.options.Window = defaultWindow
	}
	if o.Remember == 0 {
		stock.options.Remember = defaultRemember
	}
	switch {
	case name == "":
		return fail(core.CheckName(name))
	case strings.ContainsAny(stock.name, "{}"):
		return fail(fmt.Errorf("%w: %q has a brace", holdfast.ErrName, stock.name))
	case len(stock.name) > core.MaxName:
		return fail(core.CheckName(stock.name))
	case o.Limit < 0 || o.Limit > maxUnits:
		return fail(optionError("Limit is %d, from 0 to %d", o.Limit, int64(maxUnits)))
	case stock.options.Remember < leastRemember || stock.options.Remember > longestWindow:
		return fail(optionError("Remember is %v, from %v to %v", o.Remember, leastRemember, longestWindow))
	}
	if err := checkWindow(stock.options.Window); err != nil {
		return fail(err)
	}
	return stock, nil
}

// Name is the stock's full name, prefix included.
func (s *Stock) Name() string { return s.name }

// Init puts the first units on sale, once: any process may call it at its start,
// and a stock that is there is left as it is, whatever was sold. An Init that was
// interrupted is finished by the next one.
//
// Errors: [ErrConflict] if the stock was made with another number of units, which
// is Left; [holdfast.ErrOption] for a number out of range or another Limit;
// [ErrDamaged] if there are remains of another stock of this name.
func (s *Stock) Init(ctx context.Context, units int64) error {
	fail := func(err error) error { return s.fail("init", "", err) }
	if units < 0 || units > maxUnits {
		return fail(optionError("%d units, from 0 to %d", units, int64(maxUnits)))
	}
	var c *config
	id := uuid.NewString()
	for range 3 { // a bucket that may no longer be made needs another leave
		m, err := s.run(ctx, holdfast.ErrUnknown, func(ctx context.Context) rueidis.RedisResult {
			return scripts.StockInit.Exec(ctx, s.tools.Client, []string{s.key()}, []string{
				id, strconv.FormatInt(units, 10), "1", strconv.FormatInt(s.options.Limit, 10), core.Millis(initTime),
			})
		})
		if err == nil {
			c, err = s.read(m)
		}
		switch {
		case err != nil:
			return fail(err)
		case c.units != units:
			return &StockError{Call: "init", Stock: s.name, Left: c.units, Err: ErrConflict}
		case s.options.Limit != 0 && c.limit != s.options.Limit:
			return fail(optionError("Limit is %d, and the stock was made with %d", s.options.Limit, c.limit))
		case c.open:
			return nil
		}
		made, err := s.count(ctx, scripts.StockBucket, c.keys[:1], c.id, strconv.FormatInt(c.units, 10), strconv.FormatInt(c.limit, 10), c.until)
		switch {
		case err != nil:
			return fail(err)
		case made < 0:
			return fail(fmt.Errorf("%w: %s belongs to another stock", ErrDamaged, c.keys[0]))
		case made == 0:
			continue
		}
		open, err := s.count(ctx, scripts.StockOpen, []string{s.key()}, c.id)
		switch {
		case err != nil:
			return fail(err)
		case open == 1:
			return nil
		}
	}
	return fail(fmt.Errorf("%w: it does not come to an end", ErrNotOpen))
}

// Reserve takes units for an order: all of them or none, for the order's window.
// Then [Stock.Confirm] sells them, [Stock.Cancel] gives them back, or their time
// is over and they are on sale again. An order that has its units already is
// answered with them.
//
// While units that would do are tentatively in a basket it waits for the decision,
// as long as ctx allows.
//
// Errors: [ErrSoldOut], [ErrLimit]; of an order that was there before [ErrConflict]
// if it is another, [ErrExpired], and [ErrState] if it was cancelled;
// [holdfast.ErrName] for a bad id; [holdfast.ErrOption] for a quantity or window
// out of range, or no buyer where there is a limit.
func (s *Stock) Reserve(ctx context.Context, o Order) (Reservation, error) {
	return s.reserve(ctx, o, "r")
}

func (s *Stock) reserve(ctx context.Context, o Order, mode string) (Reservation, error) {
	const call = "reserve"
	if o.Window == 0 {
		o.Window = s.options.Window
	}
	err := errors.Join(checkID("order", o.ID), checkQty(o.Qty), checkWindow(o.Window))
	if o.Buyer != "" {
		err = errors.Join(err, checkID("buyer", o.Buyer))
	}
	if err != nil {
		return Reservation{}, s.fail(call, o.ID, err)
	}
	if s.asker.soldOut(o.Qty) {
		left, err := s.asker.ask(ctx, o.ID, o.Qty)
		switch {
		case errors.Is(err, errAsk): // it has to be asked for in earnest
		case err != nil:
			return Reservation{}, s.fail(call, o.ID, err)
		default:
			return Reservation{}, &StockError{Call: call, Stock: s.name, Order: o.ID, Left: left, Err: ErrSoldOut}
		}
	}
	args := []string{o.ID, strconv.FormatInt(o.Qty, 10), core.Millis(o.Window), o.Buyer, mode}
	var w *waiter
	defer func() { w.stop() }()
	for {
		c, err := s.open(ctx)
		if err == nil && c.limit > 0 && o.Buyer == "" {
			err = optionError("the stock has a limit of %d for each buyer, and the order names none", c.limit)
		}
		if err != nil {
			return Reservation{}, s.fail(call, o.ID, err)
		}
		r, err := s.act(ctx, call, o.ID, scripts.StockReserve, args...)
		switch {
		case err != nil:
			if errors.Is(err, ErrSoldOut) {
				s.asker.found(o.Qty)
			}
			return r.reservation, err
		case r.word == "wait":
			if w == nil {
				w = s.wait(c)
			}
			if !w.sleep(ctx, time.Duration(r.left)*time.Millisecond) {
				return Reservation{}, s.fail(call, o.ID, errors.Join(holdfast.ErrUnavailable,
					errors.New("baskets have the units, and are not decided yet"), ctx.Err(), cause(ctx)))
			}
		case r.word == "again":
		default:
			return r.reservation, nil
		}
	}
}

// Confirm sells the units of a reserved order: after the payment. Which of
// Confirm, Cancel and the end of its time comes first decides, in one step, by the
// server's clock. A webhook needs no more than the order's id.
//
// Errors: [ErrExpired] if its time is over: nothing was taken, and the payment is
// to be given back; [ErrState] if it was cancelled; [ErrUnknownOrder].
func (s *Stock) Confirm(ctx context.Context, order string) (Reservation, error) {
	return s.of(ctx, "confirm", order, scripts.StockConfirm)
}

// Cancel gives the units of a reserved order back. An order that was cancelled
// before, or whose time is over, is answered as it stands. An order that is not
// known is an error; if its Reserve is still on its way, it will be refused, for
// ten minutes.
//
// Errors: [ErrState] if it was sold, which is for [Stock.Refund];
// [ErrUnknownOrder].
func (s *Stock) Cancel(ctx context.Context, order string) (Reservation, error) {
	return s.of(ctx, "cancel", order, scripts.StockCancel, core.Millis(unknownRemember))
}

// Extend gives a reserved order window from now, unless it has more already.
//
// Errors: [ErrExpired]; [ErrState] if it was cancelled or sold; [ErrUnknownOrder];
// [holdfast.ErrOption].
func (s *Stock) Extend(ctx context.Context, order string, window time.Duration) (Reservation, error) {
	if err := checkWindow(window); err != nil {
		return Reservation{}, s.fail("extend", order, err)
	}
	return s.of(ctx, "extend", order, scripts.StockExtend, core.Millis(window))
}

// Refund puts units of a sold order on sale again, once for each refund's id.
//
// Errors: [ErrConflict] if the order has fewer units left, or the refund was made
// before with another order or quantity; [ErrState] or [ErrExpired] if the order
// was not sold; [ErrUnknownOrder].
func (s *Stock) Refund(ctx context.Context, r Refund) (Reservation, error) {
	if err := errors.Join(checkID("refund", r.ID), checkQty(r.Qty)); err != nil {
		return Reservation{}, s.fail("refund", r.Order, err)
	}
	return s.of(ctx, "refund", r.Order, scripts.StockRefund, r.ID, strconv.FormatInt(r.Qty, 10))
}

// Get reads an order.
//
// Errors: [ErrUnknownOrder].
func (s *Stock) Get(ctx context.Context, order string) (Reservation, error) {
	const call = "get"
	if err := checkID("order", order); err != nil {
		return Reservation{}, s.fail(call, order, err)
	}
	m, err := s.look(ctx, func(c *config) (*scripts.Script, []string, []string) {
		return scripts.StockGet, c.keys[:2], []string{c.id, order}
	})
	if err != nil {
		return Reservation{}, s.fail(call, order, err)
	}
	r, err := s.judge(call, order, m)
	return r.reservation, err
}

// Add puts more units on sale, once for each delivery's id.
//
// Errors: [ErrConflict] if the delivery was made before with another quantity,
// which is Left.
func (s *Stock) Add(ctx context.Context, d Delivery) error {
	const call = "add"
	if err := errors.Join(checkID("delivery", d.ID), checkQty(d.Qty)); err != nil {
		return s.fail(call, d.ID, err)
	}
	m, err := s.perform(ctx, scripts.StockAdd, []string{d.ID, strconv.FormatInt(d.Qty, 10)})
	if err != nil {
		return s.fail(call, d.ID, err)
	}
	list, err := m.ToArray()
	if err != nil || len(list) != 2 {
		return s.fail(call, d.ID, errors.Join(holdfast.ErrUnknown, err))
	}
	if word, _ := list[0].ToString(); word == "conflict" {
		left, _ := list[1].ToInt64()
		return &StockError{Call: call, Stock: s.name, Order: d.ID, Left: left, Err: ErrConflict}
	}
	return nil
}

// of runs a script on one order.
func (s *Stock) of(ctx context.Context, call, order string, script *scripts.Script, args ...string) (Reservation, error) {
	if err := checkID("order", order); err != nil {
		return Reservation{}, s.fail(call, order, err)
	}
	r, err := s.act(ctx, call, order, script, append([]string{order}, args...)...)
	return r.reservation, err
}

// act runs a script that answers for one order.
func (s *Stock) act(ctx context.Context, call, order string, script *scripts.Script, args ...string) (reply, error) {
	m, err := s.perform(ctx, script, args)
	if err != nil {
		return reply{}, s.fail(call, order, err)
	}
	return s.judge(call, order, m)
}

// judge makes an error of a refusal.
func (s *Stock) judge(call, order string, m rueidis.RedisMessage) (reply, error) {
	r, err := readReply(order, m)
	if err != nil {
		return r, s.fail(call, order, errors.Join(holdfast.ErrUnknown, err))
	}
	if refusal := refusals[r.word]; refusal != nil {
		return r, &StockError{Call: call, Stock: s.name, Order: order, Left: r.left, State: r.reservation.State, Err: refusal}
	}
	return r, nil
}

// perform runs a script of a bucket that changes something.
func (s *Stock) perform(ctx context.Context, script *scripts.Script, args []string) (rueidis.RedisMessage, error) {
	return s.onBucket(ctx, holdfast.ErrUnknown, func(ctx context.Context, c *config) rueidis.RedisResult {
		all := make([]string, 0, 4+len(args))
		all = append(all, c.id, c.channel, s.tools.PublishWith(ctx), core.Millis(s.options.Remember))
		return script.Exec(ctx, s.tools.Client, c.keys, append(all, args...))
	})
}

// look runs a script of a bucket that only reads, or does nothing that matters, so
// that no outcome is unknown.
func (s *Stock) look(ctx context.Context, script func(c *config) (s *scripts.Script, keys, args []string)) (rueidis.RedisMessage, error) {
	return s.onBucket(ctx, holdfast.ErrUnavailable, func(ctx context.Context, c *config) rueidis.RedisResult {
		text, keys, args := script(c)
		return text.Exec(ctx, s.tools.Client, keys, args)
	})
}

// onBucket runs a script on the bucket of the stock that is open.
func (s *Stock) onBucket(ctx context.Context, unknown error, exec func(context.Context, *config) rueidis.RedisResult) (rueidis.RedisMessage, error) {
	for again := false; ; again = true {
		c, err := s.open(ctx)
		if err != nil {
			return rueidis.RedisMessage{}, err
		}
		m, err := s.run(ctx, unknown, func(ctx context.Context) rueidis.RedisResult { return exec(ctx, c) })
		if e, ok := redisError(err); !ok || !strings.HasPrefix(e.Error(), "NOSTOCK") {
			return m, err
		}
		// Another stock may have taken the place of the one that was known.
		s.config.CompareAndSwap(c, nil)
		if now, err := s.open(ctx); err != nil {
			return m, err
		} else if again || now.id == c.id {
			return m, fmt.Errorf("%w: %s is missing", ErrDamaged, c.keys[0])
		}
	}
}

func redisError(err error) (*rueidis.RedisError, bool) {
	var e *rueidis.RedisError
	ok := errors.As(err, &e)
	return e, ok
}

// open returns what is recorded of the stock, if it is open.
func (s *Stock) open(ctx context.Context) (*config, error) {
	if c := s.config.Load(); c != nil {
		return c, nil
	}
	m, err := s.run(ctx, holdfast.ErrUnavailable, func(ctx context.Context) rueidis.RedisResult {
		return scripts.StockInit.Exec(ctx, s.tools.Client, []string{s.key()}, []string{"", "-1", "0", "0", "0"})
	})
	if err != nil {
		return nil, err
	}
	c, err := s.read(m)
	switch {
	case err != nil:
		return nil, err
	case c == nil:
		return nil, fmt.Errorf("%w: it was never initialised", ErrNotOpen)
	case !c.open:
		return nil, fmt.Errorf("%w: it is being initialised", ErrNotOpen)
	case s.options.Limit != 0 && c.limit != s.options.Limit:
		return nil, optionError("Limit is %d, and the stock was made with %d", s.options.Limit, c.limit)
	}
	s.config.Store(c)
	return c, nil
}

// read reads {id, units, buckets, limit, state, until}; nil if there is none.
func (s *Stock) read(m rueidis.RedisMessage) (*config, error) {
	list, err := m.AsStrSlice()
	if err != nil || len(list) == 0 {
		return nil, err
	}
	if len(list) != 6 {
		return nil, fmt.Errorf("%w: %s has %q", ErrDamaged, s.key(), list)
	}
	c := &config{id: list[0], open: list[4] == "open", until: list[5]}
	var err1, err2 error
	c.units, err1 = strconv.ParseInt(list[1], 10, 64)
	c.limit, err2 = strconv.ParseInt(list[3], 10, 64)
	if err1 != nil || err2 != nil || list[2] != "1" {
		return nil, fmt.Errorf("%w: %s has %q", ErrDamaged, s.key(), list)
	}
	for _, part := range []string{"units", "orders", "ends", "forget", "expired", "buyers"} {
		c.keys = append(c.keys, "holdfast_stock_"+part+":{"+s.name+":0}")
	}
	c.channel = "holdfast_stock:{" + s.name + ":0}"
	return c, nil
}

// key is the key of what is recorded.
func (s *Stock) key() string { return "holdfast_stock:{" + s.name + "}" }

// count runs a script that returns a number.
func (s *Stock) count(ctx context.Context, script *scripts.Script, keys []string, args ...string) (int64, error) {
	m, err := s.run(ctx, holdfast.ErrUnknown, func(ctx context.Context) rueidis.RedisResult {
		return script.Exec(ctx, s.tools.Client, keys, args)
	})
	if err != nil {
		return 0, err
	}
	return m.ToInt64()
}

// run runs what may run twice until it is answered, within the session's Timeout
// and ctx. The word for a command that may have been executed is unknown. What was
// refused is not sent again in the last eighth of the time, when its answer may come
// after the end: a failure that is certain is worth more than one more try.
func (s *Stock) run(ctx context.Context, unknown error, exec func(context.Context) rueidis.RedisResult) (rueidis.RedisMessage, error) {
	bound, cancel := context.WithTimeout(ctx, s.tools.Timeout)
	defer cancel()
	end, _ := bound.Deadline()
	late := time.Until(end) / 8
	var sent error // unknown, once it may have been executed
	var last error
	for tries := 0; ; tries++ {
		switch {
		case s.closed():
			return rueidis.RedisMessage{}, errors.Join(holdfast.ErrClosed, sent)
		case bound.Err() != nil:
			if sent == nil {
				sent = holdfast.ErrUnavailable
			}
			return rueidis.RedisMessage{}, errors.Join(sent, last, ctx.Err(), cause(ctx))
		}
		m, err := exec(bound).ToMessage()
		if err == nil {
			return m, nil
		}
		err = core.Fail(err)
		class := fault.ClassOf(err)
		var failure *fault.Failure
		if errors.As(err, &failure) {
			last = failure.Err
		}
		switch class {
		case fault.Fatal:
			return m, errors.Join(sent, last)
		case fault.Unknown:
			sent = unknown
		}
		pause(bound, tries)
		if sent == nil && time.Until(end) < late {
			select { // it is ctx that ends, if it ends first
			case <-bound.Done():
			case <-s.tools.Closed:
			}
		}
	}
}

func (s *Stock) closed() bool {
	select {
	case <-s.tools.Closed:
		return true
	default:
		return false
	}
}

// cause is why ctx ended, if that says more than its error.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, ctx.Err()) {
		return err
	}
	return nil
}

// pause waits before a command is sent again.
func pause(ctx context.Context, tries int) {
	d := 4 * time.Millisecond << min(tries, 5)
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// A waiter hears of what happens to the bucket.
type waiter struct {
	woken  chan struct{}
	closed chan struct{} // with the session
	end    func()
}

func (s *Stock) wait(c *config) *waiter {
	w := &waiter{woken: make(chan struct{}, 1), closed: s.tools.Closed}
	w.end = s.tools.Subscribe(c.channel, w)
	return w
}

// Notify implements lease.Listener.
func (w *waiter) Notify(lease.Signal) {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

func (w *waiter) stop() {
	if w != nil {
		w.end()
	}
}

// sleep waits for news, at most for d, or for the session's end; false if ctx
// ended.
func (w *waiter) sleep(ctx context.Context, d time.Duration) bool {
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
