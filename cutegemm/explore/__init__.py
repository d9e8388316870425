"""The explorer: layouts typed and seen, and plans with their banks, pipelines, times and machine code.

`answer` is all there is to it: a pure function from the query of a link to the HTML that a page shows. A server
calls it (`cutegemm explore`), and in a static page the same function runs in the browser, under Pyodide: see
docs/explorer.md.

>>> answer("view=layouts&expr=composition((6,2):(8,2), (4,3):(3,1))").title
'composition((6,2):(8,2), (4,3):(3,1))'
"""

from cutegemm.explore.page import Answer, answer, document, respond
from cutegemm.explore.state import State

__all__ = ["Answer", "State", "answer", "document", "respond"]
