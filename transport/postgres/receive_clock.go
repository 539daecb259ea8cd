package postgres

import (
	"context"
	"strconv"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// maxRestored bounds the rows of a statement that makes rows visible again.
const maxRestored = 10_000

// restorer returns the function that makes rows of a queue of s visible after the clock was set
// back.
func restorer(s *store) func(context.Context, string, dialect.StepBack) (int64, error) {
	return func(ctx context.Context, queue string, step dialect.StepBack) (int64, error) {
		t := s.table(queue)
		t.front.reset()
		by, leases := step.By.Microseconds(), step.Leases.Microseconds()
		tag, err := s.execute(ctx, t.restore, step.Before, by, leases)
		return tag.RowsAffected(), err
	}
}

// restoring returns the statement that makes rows of q visible if they were visible at the time $1,
// before the clock was set back by $2. Leases that last for more than $3 end earlier by $2.
func restoring(q string) string {
	return `UPDATE ` + q + ` SET visible_at = CASE WHEN lease_id IS NULL THEN now()
	ELSE visible_at - $2::bigint * interval '1 microsecond' END
WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + q + `
	WHERE visible_at > now() AND CASE WHEN lease_id IS NULL THEN visible_at <= $1::timestamptz
		ELSE visible_at > now() + $3::bigint * interval '1 microsecond' END
	ORDER BY visible_at, seq LIMIT ` + strconv.Itoa(maxRestored) + ` FOR UPDATE SKIP LOCKED))`
}
