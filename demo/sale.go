package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/redistest"
)

const (
	// suspension is how long a process is suspended at least: long enough for its
	// lease to end and for others to buy.
	suspension = 3 * lease
	// patience is for what takes no time unless something is broken.
	patience = 15 * time.Second
)

// When the faults come, as a share of the sale. The kill comes first: while one
// process is suspended the others may sell everything, and leave.
const (
	killAt    = 0.25
	suspendAt = 0.50
	// ration is how much a swift sale sells at most until the next fault: enough to
	// come there with one process less, and so little that some is left behind it.
	ration = 0.33
)

// A sale sells one fresh stock in one mode.
type sale struct {
	mode   *mode
	plan   plan
	server *server
	screen *screen
	errs   io.Writer

	guard  guard // the parent's, to look at the stock
	opened time.Time
}

// A result is what came out of a sale.
type result struct {
	mode     *mode
	units    int
	damage   damage
	limit    time.Duration // 0 unless it ended the sale
	took     time.Duration
	p50, p99 time.Duration // of the wait to buy
	refused  int           // writes and payments that came too late
}

// run holds the sale and cleans up behind it.
func (s *sale) run(ctx context.Context) (r result, err error) {
	defer s.server.remove(s.plan.Keys)
	if s.guard, err = s.mode.open(ctx, s.server.client, s.plan.Keys); err != nil {
		return r, err
	}
	defer s.guard.close()
	if err := s.guard.fill(ctx, s.plan.Units); err != nil {
		return r, err
	}

	crew := &crew{ctx: ctx, errs: s.errs}
	defer crew.finish(&err)
	processes := make([]*redistest.Process, s.plan.Processes)
	for i := range processes {
		p := s.plan
		p.Number = i
		text, err := json.Marshal(p)
		if err != nil {
			return r, err
		}
		processes[i] = redistest.Child(crew, buyersRole, planVariable+"="+string(text))
	}
	// Ctrl-C ends the processes, and with them whatever is waited for below.
	defer context.AfterFunc(ctx, func() {
		for _, p := range processes {
			p.Kill()
		}
	})()
	for _, p := range processes {
		p.Line("ready", patience)
	}

	s.opened = time.Now()
	send("open", processes)
	painted := s.paint(ctx)
	defer painted()
	if err := s.spoil(ctx, processes); err != nil {
		return r, err
	}

	r = result{mode: s.mode, units: s.plan.Units}
	var waits []int64
	for i, p := range processes {
		if i == 0 {
			continue // it was killed and has nothing to report
		}
		if err := p.Wait(s.plan.Limit + patience); err != nil {
			return r, err
		}
		var got takings
		if err := json.Unmarshal([]byte(p.Line("takings ", 0)), &got); err != nil {
			return r, err
		}
		waits = append(waits, got.Waits...)
		r.took = max(r.took, got.Took)
		r.refused += got.Refused
	}
	r.p50, r.p99 = percentiles(waits)
	painted()
	err = s.count(ctx, &r)
	return r, err
}

// spoil kills one process and suspends another, each in the middle of a purchase.
func (s *sale) spoil(ctx context.Context, all []*redistest.Process) error {
	killed, suspended := all[0], all[1]
	if err := s.until(ctx, func(n now) bool { return s.share(n) >= killAt }); err != nil {
		return err
	}
	catch(killed, all[1:])
	killed.Kill()
	send("open", all[1:])
	s.screen.say("one killed")

	if err := s.until(ctx, func(n now) bool { return s.share(n) >= suspendAt }); err != nil {
		return err
	}
	catch(suspended, all[2:])
	suspended.Stop()
	send("free", all[2:])
	s.screen.say("one suspended")
	at, err := s.look(ctx)
	if err != nil {
		return err
	}
	// Others must have bought before it goes on, or its write would not be late.
	since := time.Now()
	err = s.until(ctx, func(n now) bool { return time.Since(since) >= suspension && n.orders > at.orders })
	if err != nil {
		return err
	}
	suspended.Send("go")
	suspended.Continue()
	s.screen.say("it went on")
	return nil
}

// catch returns when a process is in the middle of a purchase, and holds the lock.
// The others buy nothing in the meantime, since under a naive lock one process can
// be kept out by them for as long as they like. Open them again.
func catch(p *redistest.Process, others []*redistest.Process) {
	send("shut", others)
	p.Send("pause")
	p.Line("inside", patience)
}

func send(line string, to []*redistest.Process) {
	for _, p := range to {
		p.Send(line)
	}
}

// now is how a sale stands.
type now struct{ stock, orders int }

// look reads how the sale stands.
func (s *sale) look(ctx context.Context) (now, error) {
	stock, err := s.guard.left(ctx)
	client := s.server.client
	orders, failed := client.Do(ctx, client.B().Hlen().Key(s.plan.Keys.Orders).Build()).AsInt64()
	return now{stock, int(orders)}, errors.Join(err, failed)
}

// share is how much of the sale is over, by the stock or by the clock: without a
// lock the stock falls so slowly that the limit comes first.
func (s *sale) share(n now) float64 {
	sold := 1 - float64(n.stock)/float64(s.plan.Units)
	return min(max(sold, float64(time.Since(s.opened))/float64(s.plan.Limit)), 1)
}

// until waits for a state of the sale, of which nothing gives notice.
func (s *sale) until(ctx context.Context, ok func(now) bool) error {
	for deadline := time.Now().Add(s.plan.Limit + patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		n, err := s.look(ctx)
		if err != nil {
			return err
		}
		if ok(n) {
			return nil
		}
	}
	return errors.New("the sale does not move")
}

// paint shows how the sale stands until the returned function is called.
func (s *sale) paint(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if n, err := s.look(ctx); err == nil {
				s.screen.draw(s.mode.name, s.share(n), n)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				s.screen.clear()
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// count reads all orders and what is left.
func (s *sale) count(ctx context.Context, r *result) error {
	n, err := s.look(ctx)
	if err != nil {
		return err
	}
	if n.stock > 0 {
		r.limit = s.plan.Limit
	}
	sold, err := s.guard.sold(ctx)
	r.damage = assess(s.plan.Units, sold)
	return err
}

// rows reads the unit of every order. HSCAN may return a row twice, so rows are
// told apart by their order number.
func rows(ctx context.Context, client rueidis.Client, key string) (orders, error) {
	units := orders{}
	for cursor := uint64(0); ; {
		page, err := client.Do(ctx, client.B().Hscan().Key(key).Cursor(cursor).Count(5000).Build()).AsScanEntry()
		if err != nil {
			return nil, err
		}
		for i := 0; i+1 < len(page.Elements); i += 2 {
			unit, err := strconv.Atoi(page.Elements[i+1])
			if err != nil {
				return nil, fmt.Errorf("order %s: %w", page.Elements[i], err)
			}
			units[page.Elements[i]] = unit
		}
		if cursor = page.Cursor; cursor == 0 {
			return units, nil
		}
	}
}

// connect opens a client as the URL says.
func connect(url string) (rueidis.Client, error) {
	o, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	o.DisableCache = true
	return rueidis.NewClient(o)
}
