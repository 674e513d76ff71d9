package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/redistest"
)

// A server is where the sales are held.
type server struct {
	name   string // for people
	url    string
	id     string // begins all keys
	client rueidis.Client
	stop   func()
}

// openServer finds or starts a server: the user's own, or else a real one, or else
// an embedded one.
func openServer(ctx context.Context) (*server, error) {
	s := &server{id: "holdfast-demo-" + rand.Text()[:8], stop: func() {}}
	var name string
	if s.url = os.Getenv("REDIS_URL"); s.url != "" {
		name = "the server at REDIS_URL"
	} else if err := s.start(&name); err != nil {
		return nil, err
	}
	var err error
	if s.client, err = connect(s.url); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.name = name + version(ctx, s.client)
	return s, nil
}

// start starts a server of our own.
func (s *server) start(name *string) error {
	real, err := redistest.Start(redistest.Options{})
	if err == nil {
		*name, s.url, s.stop = filepath.Base(real.Binary), "redis://"+real.Addr(), real.Stop
		return nil
	}
	// One that was asked for by name is not replaced.
	if !errors.Is(err, redistest.ErrNoServer) || os.Getenv(redistest.EnvServer) != "" {
		return err
	}
	small, err := miniredis.Run() // on loopback, where the other processes reach it
	if err != nil {
		return err
	}
	small.ClockTTL(true) // or leases would never end
	*name = "an embedded miniredis (there is no redis-server or valkey-server on the PATH)"
	s.url, s.stop = "redis://"+small.Addr()+"?protocol=2&client_cache=0", small.Close
	return nil
}

var versionLine = regexp.MustCompile(`(?m)^(?:redis|valkey)_version:(\S+)`)

// version asks for the version; a server may not tell.
func version(ctx context.Context, client rueidis.Client) string {
	info, err := client.Do(ctx, client.B().Info().Section("server").Build()).ToString()
	found := versionLine.FindAllStringSubmatch(info, -1)
	if err != nil || len(found) == 0 {
		return ""
	}
	return " " + found[len(found)-1][1] // Valkey tells Redis' version first, for old clients
}

// close lets go of the server, and stops it if it is ours.
func (s *server) close() {
	s.client.Close()
	s.stop()
}

// keys are the names of one sale in Redis.
type keys struct {
	Stock, Orders, Lock string
	Goods               string // the name of a segmented.Stock, which has no braces
}

func (s *server) keys(sale int) keys {
	// The braces keep the keys of a sale in one slot of a cluster.
	base := fmt.Sprintf("{%s}:%d:", s.id, sale)
	return keys{base + "stock", base + "orders", base + "lock", fmt.Sprintf("%s:%d", s.id, sale)}
}

// remove removes all that a sale has left, also when its context has ended.
func (s *server) remove(k keys) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	s.client.Do(ctx, s.client.B().Unlink().Key(
		k.Stock, k.Orders, k.Lock,
		fence.Key(k.Stock),
		"redisson_lock_token:"+k.Lock, // see package reentrant: what is in Redis
	).Build())
	// And package segmented: what is in Redis.
	goods := "holdfast_stock:{" + k.Goods + "}"
	buckets, _ := s.client.Do(ctx, s.client.B().Hget().Key(goods).Field("buckets").Build()).AsInt64()
	for i := range buckets {
		var all []string
		for _, part := range []string{"units", "orders", "ends", "forget", "expired", "buyers"} {
			all = append(all, fmt.Sprintf("holdfast_stock_%s:{%s:%d}", part, k.Goods, i))
		}
		s.client.Do(ctx, s.client.B().Unlink().Key(all...).Build())
	}
	s.client.Do(ctx, s.client.B().Unlink().Key(goods).Build())
}
