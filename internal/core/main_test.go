package core_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is for what must happen; nothing waits that long unless it fails.
const patience = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
