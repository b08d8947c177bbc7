"""Tool calls as MiniMax M2 writes them: all in one tag, and one for each call and argument.

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Oslo</parameter>
    </invoke>
    </minimax:tool_call>

(Chat template and "Tool calling guide" of MiniMax-M2.)
"""

from genai_server.text.tool_formats.tagged import Tagged

MINIMAX = Tagged(
    name="minimax",
    opening="<minimax:tool_call>",
    closing="</minimax:tool_call>",
    before_name='\n<invoke name="',
    after_name='">',
    before_key='<parameter name="',
    after_key='">',
    before_value="",
    after_value="</parameter>",
    end="</invoke>\n",
    is_shared=True,
)
