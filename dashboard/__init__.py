"""Shows finance's reports in the browser with Streamlit: pages, filters, tables and charts; every
figure comes from `gateway.reports`, and no money is computed here.
"""
