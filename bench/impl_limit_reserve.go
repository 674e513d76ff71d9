package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/scripts"
)

// bareSeller is the raw form of Holdfast's stock.
type bareSeller struct{ bareClient }

func openBareSeller(e Env) (Client, error) {
	c, err := rueidis.NewClient(e.rueidis())
	if err != nil {
		return nil, err
	}
	return &bareSeller{bareClient{redis: c, form: bareHash{}, lease: e.lease().Milliseconds(), owner: "bench:1"}}, nil
}

// Stock makes the bucket alone: the script asks for nothing else.
func (c *bareSeller) Stock(ctx context.Context, name string, units int64) (Goods, error) {
	s := &bareStock{redis: c.redis, id: "bench"}
	for _, part := range []string{"units", "orders", "ends", "forget", "expired", "buyers"} {
		s.keys = append(s.keys, "holdfast_stock_"+part+":{"+name+":0}")
	}
	s.channel = "holdfast_stock:{" + name + ":0}"
	until := strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10)
	made, err := scripts.StockBucket.Exec(ctx, c.redis, s.keys[:1], []string{s.id, strconv.FormatInt(units, 10), "0", until}).AsInt64()
	if err == nil && made != 1 {
		err = fmt.Errorf("bench: the bucket says %d", made)
	}
	return s, err
}

// bareStock is its own Buyer.
type bareStock struct {
	redis       rueidis.Client
	keys        []string
	id, channel string
}

func (s *bareStock) Buyer() Buyer { return s }

func (s *bareStock) Buy(ctx context.Context, order string) error {
	reply, err := scripts.StockReserve.Exec(ctx, s.redis, s.keys,
		[]string{s.id, s.channel, "PUBLISH", "604800000", "", order, "1", "600000", "", "r"}).ToArray()
	if err != nil {
		return err
	}
	if len(reply) == 1 && reply[0].IsInt64() {
		return nil // it got its units, and this is when
	}
	answer, err := reply[0].ToArray()
	if err != nil {
		return err
	}
	switch word, _ := answer[0].ToString(); word {
	case "soldout":
		return ErrSoldOut
	default:
		return fmt.Errorf("bench: the reservation says %q", word)
	}
}

func (s *bareStock) Left(ctx context.Context) (int64, error) {
	return s.redis.Do(ctx, s.redis.B().Hget().Key(s.keys[0]).Field("free").Build()).AsInt64()
}
