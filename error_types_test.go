package holdfast_test

import (
	"go/ast"
	"path/filepath"
	"testing"
)

// Fault headers have the Go type of an error, and ServiceControl groups failed messages by this
// name. So an error of a room names its type by a method FaultType: the room may be renamed. An
// [errtree.Mark] has no name, because fault headers have the type of the marked error.
func TestErrorsOfRoomsNameTheirTypes(t *testing.T) {
	rooms, err := filepath.Glob("endpoint/internal/*")
	if err != nil || len(rooms) < 15 {
		t.Fatal("the rooms of package endpoint are not found:", rooms, err)
	}
	named := 0
	for _, folder := range append(rooms, "internal/copies") {
		errors, names, marks := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, file := range codeOf(t, folder) {
			for _, d := range file.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil {
						continue
					}
					switch of := receiver(d); d.Name.Name {
					case "Error":
						errors[of] = true
					case "FaultType":
						names[of] = true
					}
				case *ast.GenDecl:
					markIn(d, marks)
				}
			}
		}
		for of := range errors {
			if !names[of] && !marks[of] {
				t.Errorf("%s: the error %s has no method FaultType", folder, of)
			}
		}
		named += len(names)
	}
	if named < 4 {
		t.Errorf("%d errors with the method FaultType are found, want 4 or more", named)
	}
}

// markIn adds the types of a declaration that embed an errtree.Mark to marks.
func markIn(d *ast.GenDecl, marks map[string]bool) {
	for _, spec := range d.Specs {
		typ, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		fields, ok := typ.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range fields.Fields.List {
			if sel, ok := f.Type.(*ast.SelectorExpr); ok && len(f.Names) == 0 && sel.Sel.Name == "Mark" {
				marks[typ.Name.Name] = true
			}
		}
	}
}

// receiver returns the name of the type of a method.
func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if name, ok := t.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}
