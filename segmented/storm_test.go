package segmented_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/redistest"
	"github.com/holdfast-go/holdfast/segmented"
)

// operations is how many operations the storms have; HOLDFAST_STOCK_OPS=100000
// takes minutes.
func operations(t testing.TB) int {
	t.Helper()
	n := 6000
	if text := os.Getenv("HOLDFAST_STOCK_OPS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	return n
}

// stormBuyer buys in a process of its own, until it is killed.
func stormBuyer() {
	s := childStock()
	random := rand.New(rand.NewPCG(uint64(os.Getpid()), 2))
	redistest.Say("buys")
	for i := 0; ; i++ {
		buyer := fmt.Sprint("b", i%7)
		id := segmented.OrderID(buyer, fmt.Sprint("p", os.Getpid(), "-", i))
		r, err := s.Reserve(context.Background(), segmented.Order{ID: id, Buyer: buyer, Qty: 1, Window: 300 * time.Millisecond})
		if err == nil && random.IntN(2) == 0 {
			_, _ = s.Confirm(context.Background(), r.Order.ID)
		}
	}
}

// Everything at once: calls at random by several processes, replies that are lost,
// buyers that are killed, repeats and late copies, sweepers, and viewers who sum
// up at every moment.
func TestStorm(t *testing.T) {
	for _, o := range []segmented.StockOptions{{Buckets: 1}, {Limit: 5, Buckets: 1}, {Buckets: 6}, {Limit: 5, Buckets: 6}} {
		t.Run(fmt.Sprint("limit=", o.Limit, " buckets=", o.Buckets), func(t *testing.T) {
			b := breakable(t)
			storm(t, o, stage{
				direct:  func() rueidis.Client { return connect(t, b.Addr()) },
				proxied: func() rueidis.Client { return connect(t, b.proxy.Addr()) },
				proxies: []*redistest.Proxy{b.proxy},
				env:     []string{"ADDR=" + b.proxy.Addr()},
				ops:     operations(t),
			})
		})
	}
}

// The same in a cluster, whose nodes have some buckets each.
func TestStorm_inACluster(t *testing.T) {
	for _, o := range []segmented.StockOptions{{Limit: 5, Buckets: 12}} {
		t.Run(fmt.Sprint("limit=", o.Limit, " buckets=", o.Buckets), func(t *testing.T) {
			b := breakableCluster(t, redistest.ClusterOptions{Primaries: 3, Replicas: 1})
			storm(t, o, stage{
				direct:  func() rueidis.Client { return b.Client(t) },
				proxied: func() rueidis.Client { return b.proxied(t) },
				proxies: b.proxies,
				env:     []string{"ADDR=" + strings.Join(b.Addrs(), ","), "VIA=" + b.via},
				cut:     func(r *rand.Rand) { b.proxies[r.IntN(len(b.proxies))].KillAll() },
				ops:     operations(t) / 4,
			})
		})
	}
}

// A stage is where a storm takes place.
type stage struct {
	direct, proxied func() rueidis.Client
	proxies         []*redistest.Proxy
	env             []string           // for children
	cut             func(r *rand.Rand) // breaks connections now and then, may be nil
	ops             int
}

func storm(t *testing.T, o segmented.StockOptions, st stage) {
	o.Window = 50 * time.Millisecond
	direct := openStock(t, sessionOn(t, st.direct()), "shoe", o)
	require.NoError(t, direct.Init(t.Context(), 50))
	seed := uint64(time.Now().UnixNano())
	t.Log("seed ", seed)
	const callers = 8
	var stocks []*segmented.Stock // of callers and two sweepers, each another process
	for range callers + 2 {
		stocks = append(stocks, openStock(t, sessionOn(t, st.proxied(), holdfast.SessionOptions{Timeout: time.Second}), "shoe", o))
	}
	viewer := openStock(t, sessionOn(t, st.direct()), "shoe", o)
	for i, p := range st.proxies {
		p.DropReplies(0.01, rand.New(rand.NewPCG(seed, uint64(1000+i))))
	}

	stop := make(chan struct{})
	var beside sync.WaitGroup
	var views atomic.Int64
	every := func(d time.Duration, f func()) {
		beside.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(d):
					f()
				}
			}
		})
	}
	every(0, func() {
		v, err := viewer.View(context.Background())
		if err != nil || v.Unaccounted() != 0 || v.Free < 0 || v.Reserved < 0 || v.Sold < 0 || v.Tentative < 0 {
			t.Errorf("%+v %v", v, err)
		}
		views.Add(1)
	})
	for _, sweeper := range stocks[callers:] {
		every(20*time.Millisecond, func() { _, _ = sweeper.Sweep(context.Background()) })
	}
	if o.Buckets > 1 {
		every(50*time.Millisecond, func() { _ = stocks[callers].Resize(context.Background(), 1+rand.IntN(o.Buckets)) })
	}
	if st.cut != nil {
		random := rand.New(rand.NewPCG(seed, 999))
		every(100*time.Millisecond, func() { st.cut(random) })
	}
	every(400*time.Millisecond, func() {
		child := redistest.Child(t, "storm buyer", append(st.env, "NAME=shoe")...)
		child.Line("buys", 30*time.Second)
		time.Sleep(50 * time.Millisecond)
		child.Kill()
	})

	// What the callers were told: each order's last word.
	var mu sync.Mutex
	sold := map[string]int64{} // confirmed, less refunds
	var delivered, undelivered int64
	var wg sync.WaitGroup
	known := []error{
		segmented.ErrSoldOut, segmented.ErrLimit, segmented.ErrExpired, segmented.ErrConflict, segmented.ErrState, segmented.ErrUnknownOrder,
		holdfast.ErrUnknown, holdfast.ErrUnavailable,
	}
	for c := range callers {
		s := stocks[c]
		r := rand.New(rand.NewPCG(uint64(c), seed))
		wg.Go(func() {
			for n := range st.ops / callers {
				ctx, cancel := context.Background(), context.CancelFunc(func() {})
				if r.IntN(20) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(2000))*time.Microsecond)
				}
				// Recent orders of all callers: repeats, late copies, other people's.
				number := max(0, n-r.IntN(4))
				buyer := fmt.Sprint("b", number%17)
				id := segmented.OrderID(buyer, fmt.Sprint(number, "-", r.IntN(callers)))
				qty := int64(1 + len(id)%2)
				var err error
				switch r.IntN(12) {
				case 0, 1, 2, 3:
					_, err = s.Reserve(ctx, segmented.Order{ID: id, Buyer: buyer, Qty: qty, Window: time.Duration(1+r.IntN(60)) * time.Millisecond})
				case 4, 5, 6:
					var res segmented.Reservation
					if res, err = s.Confirm(ctx, id); err == nil {
						mu.Lock()
						if _, ok := sold[id]; !ok {
							sold[id] = res.Order.Qty
						}
						mu.Unlock()
					}
				case 7:
					_, err = s.Cancel(ctx, id)
				case 8:
					_, err = s.Extend(ctx, id, 30*time.Millisecond)
				case 9, 10:
					_, err = s.Refund(ctx, segmented.Refund{ID: "f" + id, Order: id, Qty: 1})
				default:
					if r.IntN(8) == 0 {
						d := fmt.Sprint("d", c, "-", n)
						err = s.Add(ctx, segmented.Delivery{ID: d, Qty: 3})
						mu.Lock()
						switch {
						case err == nil:
							delivered += 3
						case errors.Is(err, holdfast.ErrUnknown):
							undelivered += 3
						}
						mu.Unlock()
					} else {
						_, err = s.Get(ctx, id)
					}
				}
				cancel()
				if err != nil && !slicesContainsError(known, err) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	beside.Wait()
	for _, p := range st.proxies {
		p.DropReplies(0, nil)
	}
	t.Logf("%d views summed up", views.Load())

	// All is quiet, and what killed buyers had sent has come too: what is not sold is on
	// sale.
	time.Sleep(400 * time.Millisecond)
	var v segmented.View
	redistest.Eventually(t, 10*time.Second, "all reservations are over", func() bool {
		_, err := direct.Sweep(t.Context())
		require.NoError(t, err)
		v, err = direct.View(t.Context())
		require.NoError(t, err)
		return v.Reserved+v.Tentative == 0
	})
	require.Zero(t, v.Unaccounted())
	require.GreaterOrEqual(t, v.Added, 50+delivered)
	require.LessOrEqual(t, v.Added, 50+delivered+undelivered)
	var sum int64
	for r, err := range direct.Orders(t.Context()) {
		require.NoError(t, err)
		if r.State == segmented.Sold {
			sum += r.Order.Qty - r.Refunded
			delete(sold, r.Order.ID)
		}
	}
	require.Equal(t, v.Sold, sum, "units sold are those of the orders")
	require.Empty(t, sold, "who was told that it is sold, has it")
	// And with buyers enough all of it is sold.
	for i := int64(0); i < v.Free; i++ {
		_, err := direct.Reserve(t.Context(), segmented.Order{ID: fmt.Sprint("rest", i, "/1"), Buyer: fmt.Sprint("rest", i), Qty: 1, Window: time.Minute})
		require.NoError(t, err)
	}
	_, err := direct.Reserve(t.Context(), segmented.Order{ID: "last/1", Buyer: "last", Qty: 1})
	require.ErrorIs(t, err, segmented.ErrSoldOut)
}

func slicesContainsError(list []error, err error) bool {
	for _, e := range list {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
