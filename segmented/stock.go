package segmented

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/core"
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
	// clusterBuckets is the default number in a cluster: with so many, each node has
	// about as many as the others.
	clusterBuckets = 64
	maxBuckets     = 1024
)

// StockOptions tune a stock. The zero value means every default.
type StockOptions struct {
	// Buckets is how many parts the stock has, each in a slot of its own, so that the
	// nodes of a cluster share the work. More than one is for a cluster: on one server
	// they have to fetch units from each other and give nothing for it. Default 64 in
	// a cluster and 1 on one server, at most 1024. Init records it, and it never
	// changes, since it says where an order is. A process that comes with another
	// number is told [holdfast.ErrOption], and one that comes with 0 goes by the record.
	Buckets int

	// Limit is how many units one buyer may have, reserved and sold ones together.
	// Default: no limit. With a limit the id of an order has to be that of the buyer, a
	// slash, and something without one, as [OrderID] makes it: all orders of a buyer
	// are in one bucket, which anybody who knows the id can find. Init records the
	// limit, as it does the number of buckets.
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
	calls   lease.Calls

	remember, window string // of options, in milliseconds
}

// config is what Init has recorded, and what follows from it.
type config struct {
	id      string
	units   int64
	limit   int64
	live    int    // in so many buckets free units rest
	until   string // buckets may be made until then
	open    bool
	buckets []bucket
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
	case o.Buckets < 0 || o.Buckets > maxBuckets:
		return fail(optionError("Buckets is %d, from 1 to %d", o.Buckets, maxBuckets))
	case o.Limit < 0 || o.Limit > maxUnits:
		return fail(optionError("Limit is %d, from 0 to %d", o.Limit, int64(maxUnits)))
	case stock.options.Remember < leastRemember || stock.options.Remember > longestWindow:
		return fail(optionError("Remember is %v, from %v to %v", o.Remember, leastRemember, longestWindow))
	}
	if err := checkWindow(stock.options.Window); err != nil {
		return fail(err)
	}
	stock.calls.Timeout = stock.tools.Timeout
	stock.remember, stock.window = core.Millis(stock.options.Remember), core.Millis(stock.options.Window)
	return stock, nil
}

// Name is the stock's full name, prefix included.
func (s *Stock) Name() string { return s.name }

// Init puts the first units on sale, once: any process may call it at its start,
// and a stock that is there is left as it is, whatever was sold. An Init that was
// interrupted is finished by the next one.
//
// Errors: [ErrConflict] if the stock was made with another number of units, which
// is Left; [holdfast.ErrOption] for a number out of range, or another Limit or
// number of Buckets; [ErrDamaged] if there are remains of another stock of this
// name.
func (s *Stock) Init(ctx context.Context, units int64) error {
	fail := func(err error) error { return s.fail("init", "", err) }
	if units < 0 || units > maxUnits {
		return fail(optionError("%d units, from 0 to %d", units, int64(maxUnits)))
	}
	buckets := s.options.Buckets
	if buckets == 0 {
		buckets = 1
		if s.tools.Client.Mode() == rueidis.ClientModeCluster {
			buckets = clusterBuckets
		}
	}
	id := uuid.NewString()
	for range 3 { // buckets that may no longer be made need another leave
		m, err := s.run(ctx, holdfast.ErrUnknown, func(ctx context.Context) (rueidis.RedisMessage, error) {
			return scripts.StockInit.Exec(ctx, s.tools.Client, []string{s.key()}, []string{
				id, strconv.FormatInt(units, 10), strconv.Itoa(buckets), strconv.FormatInt(s.options.Limit, 10), core.Millis(initTime),
			}).ToMessage()
		})
		var c *config
		if err == nil {
			c, err = s.read(m)
		}
		if err == nil && c.units != units {
			return &StockError{Call: "init", Stock: s.name, Left: c.units, Err: ErrConflict}
		}
		if err == nil {
			err = s.agrees(c)
		}
		switch {
		case err != nil:
			return fail(err)
		case c.open:
			return nil
		}
		made, err := s.makeBuckets(ctx, c)
		switch {
		case err != nil:
			return fail(err)
		case !made:
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

// makeBuckets makes those that are not there yet; false if the leave to do so has
// ended.
func (s *Stock) makeBuckets(ctx context.Context, c *config) (bool, error) {
	several := "0"
	if len(c.buckets) > 1 {
		several = "1"
	}
	jobs := make([]job, len(c.buckets))
	for i := range c.buckets {
		jobs[i] = job{&c.buckets[i], []string{
			c.id, strconv.FormatInt(share(c.units, len(c.buckets), i), 10), strconv.FormatInt(c.limit, 10), c.until, several,
		}}
	}
	replies, err := s.each(ctx, holdfast.ErrUnknown, scripts.StockBucket, func(b *bucket) []string { return b.keys[:1] }, jobs)
	if err != nil {
		return false, err
	}
	for i, m := range replies {
		made, err := m.ToInt64()
		switch {
		case err != nil:
			return false, err
		case made < 0:
			return false, fmt.Errorf("%w: %s belongs to another stock", ErrDamaged, c.buckets[i].keys[0])
		case made == 0:
			return false, nil
		}
	}
	return true, nil
}

// share is what the i-th of n gets if units are dealt out evenly.
func share(units int64, n, i int) int64 {
	each := units / int64(n)
	if int64(i) < units%int64(n) {
		each++
	}
	return each
}

// Reserve takes units for an order: all of them or none, for the order's window.
// Then [Stock.Confirm] sells them, [Stock.Cancel] gives them back, or their time
// is over and they are on sale again. An order that has its units already is
// answered with them.
//
// While units that would do are tentatively in a basket it waits for the decision,
// and while they are on their way to another bucket for their arrival, as long as ctx
// allows.
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
	window := s.window
	if o.Window == 0 {
		o.Window = s.options.Window
	} else if o.Window != s.options.Window {
		window = core.Millis(o.Window)
	}
	if err := checkOrder(o); err != nil {
		return Reservation{}, s.fail(call, o.ID, err)
	}
	soldOut := func(left int64) (Reservation, error) {
		return Reservation{}, &StockError{Call: call, Stock: s.name, Order: o.ID, Left: left, Err: ErrSoldOut}
	}
	if s.asker.soldOut(o.Qty) {
		a, err := s.asker.ask(ctx, o)
		switch {
		case err != nil:
			return Reservation{}, s.fail(call, o.ID, err)
		case a.refuses(o.Qty):
			return soldOut(a.free)
		}
	}
	// The order, as scripts want it, with what all of them begin with.
	args := []string{"", "", "", "", "", o.ID, strconv.FormatInt(o.Qty, 10), window, o.Buyer, mode}
	var w waiters
	defer w.stop()
	var coming []transfer // units that go with the next try
	var sender *config    // to the stock that has sent them, and not to one that has taken its place
	for tries := 0; ; tries++ {
		c, err := s.open(ctx)
		if err == nil {
			err = c.checkOrder(o)
		}
		if err != nil {
			return Reservation{}, s.fail(call, o.ID, err)
		}
		var home *bucket
		took := false
		m, err := s.onBucket(ctx, holdfast.ErrUnknown, o.ID, func(ctx context.Context, found *config, b *bucket) (rueidis.RedisMessage, error) {
			c, home = found, b
			args[0], args[1], args[2], args[3], args[4] = c.id, b.channel, s.tools.PublishWith(ctx), s.remember, ""
			if took = len(coming) > 0 && c.id == sender.id; took {
				args[4] = textOf(coming)
				return scripts.StockReserveBatch.Run(ctx, s.tools.Client, b.keys, args)
			}
			return b.reserve.Run(ctx, b.keys, args)
		})
		if err != nil {
			return Reservation{}, s.fail(call, o.ID, err)
		}
		r, err := s.readReserve(call, o, mode, m)
		if took {
			c, arrived := sender, coming
			s.tools.Background(func(ctx context.Context) { _ = s.arrived(ctx, c, arrived) })
		}
		coming = nil
		switch {
		case errors.Is(err, ErrSoldOut) && len(c.buckets) > 1:
			got, err := s.fetch(ctx, c, home, o, &w, tries)
			var short *shortError
			switch {
			case errors.As(err, &short):
				s.asker.found(o.Qty)
				return soldOut(short.left)
			case err != nil:
				return Reservation{}, s.fail(call, o.ID, err)
			}
			coming, sender = got, c
		case err != nil:
			if errors.Is(err, ErrSoldOut) {
				s.asker.found(o.Qty)
			}
			return r.reservation, err
		case r.word == "wait":
			w.listen(s, home)
			if !w.sleep(ctx, time.Duration(r.left)*time.Millisecond) {
				return Reservation{}, s.fail(call, o.ID, errors.Join(errUndecided, ctx.Err(), cause(ctx)))
			}
		case r.word == "again":
		default:
			return r.reservation, nil
		}
	}
}

var errUndecided = fmt.Errorf("%w: baskets have the units, and are not decided yet", holdfast.ErrUnavailable)

// readReserve reads an answer, or when the order got its units.
func (s *Stock) readReserve(call string, o Order, mode string, m rueidis.RedisMessage) (reply, error) {
	now, err := m.ToInt64()
	if err != nil {
		return s.judge(call, o.ID, m)
	}
	r := reply{word: "ok", reservation: Reservation{
		Order: Order{ID: o.ID, Buyer: o.Buyer, Qty: o.Qty}, State: states[mode], At: time.UnixMilli(now),
	}}
	r.reservation.Left = (o.Window + time.Millisecond - 1).Truncate(time.Millisecond)
	r.reservation.Until = r.reservation.At.Add(r.reservation.Left)
	return r, nil
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

// Refund puts units of a sold order on sale again, once for each id of a refund of
// that order.
//
// Errors: [ErrConflict] if the order has fewer units left, or the refund was made
// before with another quantity; [ErrState] or [ErrExpired] if the order
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
	m, err := s.onBucket(ctx, holdfast.ErrUnavailable, order, func(ctx context.Context, c *config, b *bucket) (rueidis.RedisMessage, error) {
		return scripts.StockGet.Exec(ctx, s.tools.Client, b.keys[:2], []string{c.id, order}).ToMessage()
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
	m, err := s.onBucket(ctx, holdfast.ErrUnknown, d.ID, func(ctx context.Context, c *config, _ *bucket) (rueidis.RedisMessage, error) {
		// A delivery is found by its own id, whatever the ids of orders look like.
		b := c.by(d.ID)
		args := s.args(ctx, c, b, d.ID, strconv.FormatInt(d.Qty, 10))
		return scripts.StockAdd.Exec(ctx, s.tools.Client, b.keys, args).ToMessage()
	})
	if err != nil {
		return s.fail(call, d.ID, err)
	}
	list, err := m.ToArray()
	if err != nil || len(list) != 2 {
		return s.fail(call, d.ID, errors.Join(holdfast.ErrUnknown, err))
	}
	switch word, _ := list[0].ToString(); word {
	case "conflict":
		left, _ := list[1].ToInt64()
		return &StockError{Call: call, Stock: s.name, Order: d.ID, Left: left, Err: ErrConflict}
	case "ok":
		// The units are on sale, wherever they are. Many of them are dealt out since that
		// spares buyers the way; if it fails nothing is lost.
		_ = s.withConfig(ctx, func(c *config) error {
			if d.Qty < int64(c.live) {
				return nil
			}
			return s.balance(ctx, c)
		})
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
	m, err := s.perform(ctx, holdfast.ErrUnknown, order, script, args)
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

// perform runs a script on the bucket of an order.
func (s *Stock) perform(ctx context.Context, unknown error, order string, script *scripts.Script, args []string) (rueidis.RedisMessage, error) {
	return s.onBucket(ctx, unknown, order, func(ctx context.Context, c *config, b *bucket) (rueidis.RedisMessage, error) {
		return script.Exec(ctx, s.tools.Client, b.keys, s.args(ctx, c, b, args...)).ToMessage()
	})
}

// args are the arguments with which most scripts of a bucket begin, and more.
func (s *Stock) args(ctx context.Context, c *config, b *bucket, more ...string) []string {
	all := make([]string, 0, 4+len(more))
	all = append(all, c.id, b.channel, s.tools.PublishWith(ctx), s.remember)
	return append(all, more...)
}

// onBucket runs what may run twice on the bucket of an order.
func (s *Stock) onBucket(ctx context.Context, unknown error, order string, exec func(context.Context, *config, *bucket) (rueidis.RedisMessage, error)) (m rueidis.RedisMessage, err error) {
	err = s.withConfig(ctx, func(c *config) error {
		var err error
		b := c.home(order)
		m, err = s.run(ctx, unknown, func(ctx context.Context) (rueidis.RedisMessage, error) { return exec(ctx, c, b) })
		return missing(b, err)
	})
	return m, err
}

// withConfig calls f with what is recorded of the stock, and once more if another
// stock has taken the place of the one that was known.
func (s *Stock) withConfig(ctx context.Context, f func(*config) error) error {
	for again := false; ; again = true {
		c, err := s.open(ctx)
		if err != nil {
			return err
		}
		if err = f(c); !errors.Is(err, ErrDamaged) {
			return err
		}
		s.config.CompareAndSwap(c, nil)
		if now, failed := s.open(ctx); failed != nil || again || now.id == c.id {
			return err
		}
	}
}

// missing says so if a script did not find the bucket.
func missing(b *bucket, err error) error {
	if e, ok := redisError(err); ok && strings.HasPrefix(e.Error(), "NOSTOCK") {
		return fmt.Errorf("%w: %s is missing", ErrDamaged, b.keys[0])
	}
	return err
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
	c, err := s.recorded(ctx)
	switch {
	case err != nil:
		return nil, err
	case c == nil:
		return nil, fmt.Errorf("%w: it was never initialised", ErrNotOpen)
	case !c.open:
		return nil, fmt.Errorf("%w: it is being initialised", ErrNotOpen)
	}
	if err := s.agrees(c); err != nil {
		return nil, err
	}
	s.config.Store(c)
	return c, nil
}

// recorded asks what is recorded of the stock; nil if nothing is.
func (s *Stock) recorded(ctx context.Context) (*config, error) {
	m, err := s.run(ctx, holdfast.ErrUnavailable, func(ctx context.Context) (rueidis.RedisMessage, error) {
		return scripts.StockInit.Exec(ctx, s.tools.Client, []string{s.key()}, []string{"", "-1", "0", "0", "0"}).ToMessage()
	})
	if err != nil {
		return nil, err
	}
	return s.read(m)
}

// agrees compares the options with what is recorded.
func (s *Stock) agrees(c *config) error {
	switch {
	case s.options.Limit != 0 && c.limit != s.options.Limit:
		return optionError("Limit is %d, and the stock was made with %d", s.options.Limit, c.limit)
	case s.options.Buckets != 0 && len(c.buckets) != s.options.Buckets:
		return optionError("Buckets is %d, and the stock was made with %d", s.options.Buckets, len(c.buckets))
	}
	return nil
}

// read reads {id, units, buckets, limit, state, until, live}; nil if there is none.
func (s *Stock) read(m rueidis.RedisMessage) (*config, error) {
	list, err := m.AsStrSlice()
	if err != nil || len(list) == 0 {
		return nil, err
	}
	damaged := fmt.Errorf("%w: %s has %q", ErrDamaged, s.key(), list)
	if len(list) != 7 {
		return nil, damaged
	}
	c := &config{id: list[0], open: list[4] == "open", until: list[5]}
	var errs [4]error
	var buckets int
	c.units, errs[0] = strconv.ParseInt(list[1], 10, 64)
	buckets, errs[1] = strconv.Atoi(list[2])
	c.limit, errs[2] = strconv.ParseInt(list[3], 10, 64)
	c.live, errs[3] = strconv.Atoi(list[6])
	if errors.Join(errs[:]...) != nil || buckets < 1 || buckets > maxBuckets || c.live < 1 || c.live > buckets {
		return nil, damaged
	}
	for i := range buckets {
		c.buckets = append(c.buckets, s.bucket(i))
	}
	return c, nil
}

// key is the key of what is recorded.
func (s *Stock) key() string { return "holdfast_stock:{" + s.name + "}" }

// count runs a script that returns a number.
func (s *Stock) count(ctx context.Context, script *scripts.Script, keys []string, args ...string) (int64, error) {
	m, err := s.run(ctx, holdfast.ErrUnknown, func(ctx context.Context) (rueidis.RedisMessage, error) {
		return script.Exec(ctx, s.tools.Client, keys, args).ToMessage()
	})
	if err != nil {
		return 0, err
	}
	return m.ToInt64()
}
