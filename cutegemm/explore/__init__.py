"""The explorer: a web page that draws layouts, and shows banks, pipelines, times and machine code of plans.

`answer` is the whole explorer: a pure function from the query of a link to the HTML of a page. The server of
`cutegemm explore` calls it. In a static page the same function runs in the browser, under Pyodide. See
docs/explorer.md.

>>> answer("view=layouts&expr=composition((6,2):(8,2), (4,3):(3,1))").title
'composition((6,2):(8,2), (4,3):(3,1))'
"""

from cutegemm.explore.page import Answer, answer, document, respond
from cutegemm.explore.state import State

__all__ = ["Answer", "State", "answer", "document", "respond"]
