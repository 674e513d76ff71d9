package segmented

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/scripts"
)

const (
	// soldOutFor is how long it is remembered that a stock was sold out.
	soldOutFor = time.Second
	// askMost is how many orders are asked for at once.
	askMost = 128
)

// An asker spares those who come when all is sold. As long as it is remembered
// that the stock was sold out, orders that come at the same time are asked for
// together, by a script that only looks: whether there are units after all, and
// whether an order has some already, since one that is repeated must not be told
// that it came too late. So nobody is refused by memory alone, and what comes
// back is on sale at once.
type asker struct {
	stock *Stock

	mu    sync.Mutex // guards what follows
	until time.Time
	least int64 // the smallest order that was refused
	queue []*question
	busy  bool // a goroutine asks
}

type question struct {
	order string
	done  chan struct{}
	left  int64 // units that are free
	most  int64 // and that may be
	err   error
}

// errAsk says that an order has to be asked for in earnest.
var errAsk = errors.New("there may be units, or the order has some")

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

// ask returns how many units are left for an order that has none and wants more
// than that.
func (a *asker) ask(ctx context.Context, order string, qty int64) (int64, error) {
	q := &question{order: order, done: make(chan struct{})}
	a.mu.Lock()
	a.queue = append(a.queue, q)
	if !a.busy {
		a.busy = true
		go a.run()
	}
	a.mu.Unlock()
	select {
	case <-q.done:
		if q.err == nil && q.most >= qty {
			return 0, errAsk
		}
		return q.left, q.err
	case <-ctx.Done():
		return 0, errors.Join(holdfast.ErrUnavailable, ctx.Err(), cause(ctx))
	}
}

// run asks as long as there are questions: those that come while one script is
// under way go with the next.
func (a *asker) run() {
	for {
		a.mu.Lock()
		n := min(len(a.queue), askMost)
		if n == 0 {
			a.busy = false
			a.mu.Unlock()
			return
		}
		batch := a.queue[:n:n]
		a.queue = a.queue[n:]
		a.mu.Unlock()
		a.send(batch)
		for _, q := range batch {
			close(q.done)
		}
	}
}

func (a *asker) send(batch []*question) {
	m, err := a.stock.look(context.Background(), func(c *config) (*scripts.Script, []string, []string) {
		args := make([]string, 1, 1+len(batch))
		args[0] = c.id
		for _, q := range batch {
			args = append(args, q.order)
		}
		return scripts.StockAsk, c.keys[:3], args
	})
	var list []int64
	if err == nil {
		list, err = m.AsIntSlice()
	}
	if err == nil && len(list) != 2+len(batch) {
		err = errAsk
	}
	for i, q := range batch {
		switch {
		case err != nil:
			q.err = err
		case list[1] < 0 || list[i+2] == 1:
			q.err = errAsk
		default:
			q.left, q.most = list[0], list[1]
		}
	}
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if list[1] < 0 || list[1] >= a.least {
		a.until = time.Time{}
	} else {
		a.until = time.Now().Add(soldOutFor)
	}
}
