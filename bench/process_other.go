//go:build !unix

package bench

import (
	"errors"
	"sync/atomic"
	"time"
)

// processCPU knows nothing here.
func processCPU() time.Duration { return 0 }

func SharedCounter(string) (*atomic.Int64, error) { return nil, errors.ErrUnsupported }
