package sqlserver

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// adoptionScript returns the batches of a script that adopt tables. After one that is refused, no
// further statement of the script is executed.
func (s *store) adoptionScript(plan transport.Plan) (steps []step) {
	for _, q := range plan.Queues {
		of, a := fmt.Sprintf("queue %q", q.Name), newAdoption(s.Schema, s.place(q.Name))
		steps = append(steps, step{of, repeated(q.Name, a.upgrade)})
		if q.Shared {
			continue
		}
		steps = append(steps, step{of, s.refused(q.Name, a.unfit)})
		for _, statement := range []string{a.columns, a.fill, a.indexes, a.lease} {
			steps = append(steps, step{of, repeated(q.Name, statement)})
		}
	}
	return append(steps, step{"locks", strings.TrimSpace(anyLockWait)})
}

// refused returns the batch that lists the parts of a table which keep it from being adopted, and
// then ends the script.
func (s *store) refused(queue, unfit string) string {
	q := s.place(queue).quoted()
	return `IF object_id(` + literal(q) + `, N'U') IS NOT NULL AND col_length(` + literal(q) + `, N'lease_id') IS NULL
BEGIN
	DECLARE @found TABLE (kind nvarchar(60), name nvarchar(300), detail nvarchar(600));
	INSERT INTO @found
` + unfit + `
	IF EXISTS (SELECT 1 FROM @found)
	BEGIN
		SELECT kind, name, detail FROM @found;
		RAISERROR (N'%s', 16, 1, ` + literal(fmt.Sprintf("queue %q: its table is not as NServiceBus creates it, and is not adopted", queue)) + `);
		SET NOEXEC ON;
	END
END`
}

// repeated returns the batch that executes a statement of an adoption until the table is not locked
// by others.
func repeated(queue, statement string) string {
	return `DECLARE @again bit = 1;
WHILE @again = 1
BEGIN
	BEGIN TRY
		` + strings.TrimSpace(adoptionWait) + `
		` + strings.ReplaceAll(statement, "\n", "\n\t\t") + `
		SET @again = 0;
	END TRY
	BEGIN CATCH
		IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
		IF error_number() <> ` + fmt.Sprint(lockTimeoutExceeded) + ` THROW;
		RAISERROR (N'%s', 0, 1, ` + literal(fmt.Sprintf("queue %q: its table is locked by another transaction: trying again", queue)) + `) WITH NOWAIT;
		WAITFOR DELAY '00:00:01';
	END CATCH
END`
}
