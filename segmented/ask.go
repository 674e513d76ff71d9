package segmented

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

const (
	// soldOutFor is how long it is remembered that a stock was sold out.
	soldOutFor = time.Second
	// askMost is how many orders are asked for at once.
	askMost = 1024
	// looks is how often one question looks into all buckets before whoever asked
	// goes on with what it knows.
	looks = 8
)

// An asker looks into all buckets for those who found too little in their own, and
// for those who come when all is sold: as long as that is remembered, orders are
// asked for before anybody tries to get them their units. Who asks at the same time
// is answered by the same look, which also says whether an order has its units
// already, since one that is repeated must not be told that it came too late. So
// nobody is refused by memory alone, and what comes back is on sale at once.
type asker struct {
	stock *Stock

	mu    sync.Mutex // guards what follows
	until time.Time
	least int64 // the smallest order that was refused
	queue []*question
	busy  bool // a goroutine asks

	before   cut // the last look at which nothing was on its way; of that goroutine
	beforeID string
}

type question struct {
	order  Order
	done   chan struct{}
	answer answer
	err    error
}

// An answer is what all buckets had.
type answer struct {
	cut   cut
	there bool  // the order is known
	free  int64 // units that are free
	most  int64 // at one moment of the question no more were free, or could become so; -1 if that is not known
}

// refuses reports whether an order that wants so many units cannot get them.
func (a *answer) refuses(qty int64) bool { return !a.there && a.most >= 0 && a.most < qty }

// A shortError says that too few units are left.
type shortError struct{ left int64 }

func (e *shortError) Error() string { return fmt.Sprintf("%v, %d left", ErrSoldOut, e.left) }

// found remembers that an order for so many units was refused.
func (a *asker) found(qty int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.until.Before(now) || qty < a.least {
		a.least = qty
	}
	a.until = now.Add(soldOutFor)
}

// soldOut reports whether an order for so many units was refused lately.
func (a *asker) soldOut(qty int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return qty >= a.least && time.Now().Before(a.until)
}

// ask looks for an order, together with all who ask meanwhile.
func (a *asker) ask(ctx context.Context, o Order) (answer, error) {
	q := &question{order: o, done: make(chan struct{})}
	a.mu.Lock()
	a.queue = append(a.queue, q)
	if !a.busy {
		a.busy = true
		go a.run()
	}
	a.mu.Unlock()
	select {
	case <-q.done:
		return q.answer, q.err
	case <-ctx.Done():
		return answer{}, errors.Join(holdfast.ErrUnavailable, ctx.Err(), cause(ctx))
	}
}

// run answers as long as there are questions: those that come during one look go
// with the next.
func (a *asker) run() {
	for {
		a.mu.Lock()
		n := min(len(a.queue), askMost)
		if n == 0 {
			a.busy, a.queue = false, nil
			a.mu.Unlock()
			return
		}
		batch := a.queue[:n:n]
		a.queue = a.queue[n:]
		a.mu.Unlock()
		var found answer
		ctx := context.Background()
		err := a.stock.withConfig(ctx, func(c *config) (err error) {
			found, err = a.look(ctx, c, batch)
			return err
		})
		for _, q := range batch {
			q.err = err
			q.answer.cut, q.answer.free, q.answer.most = found.cut, found.free, found.most
			close(q.done)
		}
		if err == nil {
			a.learn(found.most)
		}
	}
}

// learn remembers, or forgets, that the stock is sold out.
func (a *asker) learn(most int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if most < 0 || most >= a.least {
		a.until = time.Time{}
	} else {
		a.until = time.Now().Add(soldOutFor)
	}
}

// look looks until it has an answer that does for the orders of the batch.
// One look sees the buckets at different moments, and units that move between them
// may be seen nowhere: so what is not there has to be not there twice. Units that
// are on their way, or in orders whose time is over, are brought home first.
func (a *asker) look(ctx context.Context, c *config, batch []*question) (found answer, err error) {
	orders := make([][]string, len(c.buckets))
	at := make([]int, len(batch)) // place of each order among those of its bucket
	least, largest := batch[0].order.Qty, int64(0)
	for i, q := range batch {
		least, largest = min(least, q.order.Qty), max(largest, q.order.Qty)
		n := c.home(q.order.ID).number
		at[i] = len(orders[n])
		orders[n] = append(orders[n], q.order.ID)
	}
	if a.beforeID != c.id {
		a.before, a.beforeID = nil, c.id
	}
	for tries := range looks {
		now, err := a.stock.look(ctx, c, orders)
		if err != nil {
			return found, err
		}
		u, due, sent := now.sum()
		found = answer{cut: now, free: u.Free, most: -1}
		for i, q := range batch {
			n := c.home(q.order.ID).number
			q.answer.there = len(now[n].there) > at[i] && now[n].there[at[i]]
		}
		switch {
		case len(c.buckets) == 1:
			if due == 0 {
				found.most = u.Free + u.Tentative
			}
			return found, nil
		case due > 0:
			err = a.stock.sweepDue(ctx, c, now)
		case len(sent) > 0:
			err = a.stock.settle(ctx, c, sent)
		default:
			before := a.before
			a.before = now
			some, all := u.Free+u.Tentative >= least, u.Free+u.Tentative >= largest
			if now.still(before) {
				was, _, _ := before.sum()
				if most := was.Free + was.Tentative; some || most < least {
					found.most = most
					return found, nil
				}
			}
			// Large orders are worth one look more, for which small ones wait.
			if all || some && tries > 0 {
				return found, nil
			}
		}
		if err != nil {
			return found, err
		}
	}
	return found, nil
}
